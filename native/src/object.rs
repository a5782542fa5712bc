//! Python objects as the core sees them: by exact types, through the stable ABI.
//!
//! Everything here needs the GIL, and calls nothing that runs Python code: what was looked at does not change until
//! the call is over. Pointers named `Obj` are borrowed; `Ref` is a strong reference.

use pyo3::ffi;
use std::ffi::{c_int, c_void};

pub type Obj = *mut ffi::PyObject;

/// A call is not for the fast path, or failed: Python does it again, and reports what is wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Declined;

pub type Fast<T> = Result<T, Declined>;

/// How deeply lists and dicts nest, as in `msgpack.MAX_DEPTH`.
pub const MAX_DEPTH: usize = 48;

/// A strong reference. It is dropped with the GIL held: only `Known`, an object of Python, and locals have some.
pub struct Ref(Obj);

// Safety: see above; the references are only used by threads that hold the GIL.
unsafe impl Send for Ref {}
unsafe impl Sync for Ref {}

impl Ref {
    /// Take over a reference that a function returned; null is an error, which is cleared.
    pub unsafe fn owned(object: Obj) -> Fast<Ref> {
        if object.is_null() {
            ffi::PyErr_Clear();
            return Err(Declined);
        }
        Ok(Ref(object))
    }

    pub unsafe fn borrowed(object: Obj) -> Ref {
        ffi::Py_INCREF(object);
        Ref(object)
    }

    pub fn get(&self) -> Obj {
        self.0
    }

    /// Give the reference away.
    pub fn into(self) -> Obj {
        let object = self.0;
        std::mem::forget(self);
        object
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        // Safety: it is a strong reference, and the GIL is held.
        unsafe { ffi::Py_DECREF(self.0) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Str,
    Int,
    Float,
    Bool,
    None,
    Bytes,
    List,
    Dict,
    Other,
}

impl Kind {
    pub fn is_container(self) -> bool {
        self == Kind::List || self == Kind::Dict
    }
}

/// The kind of an object by its exact type.
pub unsafe fn kind(object: Obj) -> Kind {
    let class = ffi::Py_TYPE(object);
    if class == &raw mut ffi::PyUnicode_Type {
        Kind::Str
    } else if object == ffi::Py_None() {
        Kind::None
    } else if class == &raw mut ffi::PyDict_Type {
        Kind::Dict
    } else if class == &raw mut ffi::PyList_Type {
        Kind::List
    } else if class == &raw mut ffi::PyLong_Type {
        Kind::Int
    } else if class == &raw mut ffi::PyBool_Type {
        Kind::Bool
    } else if class == &raw mut ffi::PyFloat_Type {
        Kind::Float
    } else if class == &raw mut ffi::PyBytes_Type {
        Kind::Bytes
    } else {
        Kind::Other
    }
}

/// The number of references to an object. A Python that does not count like this does not load the stable ABI.
pub unsafe fn references(object: Obj) -> u32 {
    // From 3.12 on the upper half has flags.
    ffi::Py_REFCNT(object) as u64 as u32
}

/// The UTF-8 of an exact str, declined if it has lone surrogates.
pub unsafe fn utf8<'a>(text: Obj) -> Fast<&'a [u8]> {
    let mut size = 0;
    let start = ffi::PyUnicode_AsUTF8AndSize(text, &mut size);
    if start.is_null() {
        ffi::PyErr_Clear();
        return Err(Declined);
    }
    Ok(std::slice::from_raw_parts(start.cast(), size as usize))
}

/// The content of exact bytes.
pub unsafe fn content<'a>(bytes: Obj) -> &'a [u8] {
    let size = ffi::PyBytes_Size(bytes) as usize;
    std::slice::from_raw_parts(ffi::PyBytes_AsString(bytes).cast(), size)
}

pub unsafe fn new_bytes(content: &[u8]) -> Fast<Ref> {
    Ref::owned(ffi::PyBytes_FromStringAndSize(
        content.as_ptr().cast(),
        content.len() as isize,
    ))
}

/// The entries of an exact dict, in order.
pub struct Entries {
    dict: Obj,
    place: ffi::Py_ssize_t,
}

impl Entries {
    pub unsafe fn of(dict: Obj) -> Entries {
        Entries { dict, place: 0 }
    }
}

impl Iterator for Entries {
    type Item = (Obj, Obj);

    fn next(&mut self) -> Option<(Obj, Obj)> {
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // Safety: an exact dict that nobody changes meanwhile.
        let found = unsafe { ffi::PyDict_Next(self.dict, &mut self.place, &mut key, &mut value) };
        (found != 0).then_some((key, value))
    }
}

/// Call `visit` with all that an object refers to, as `gc.get_referents` does, until it returns false.
pub unsafe fn referents<F: FnMut(Obj) -> bool>(object: Obj, mut visit: F) {
    unsafe extern "C" fn each<F: FnMut(Obj) -> bool>(object: Obj, visit: *mut c_void) -> c_int {
        // Safety: the pointer below, to a closure that lives until the traversal ends and does not panic.
        c_int::from(!(*visit.cast::<F>())(object))
    }
    let slot = ffi::PyType_GetSlot(ffi::Py_TYPE(object), ffi::Py_tp_traverse);
    if !slot.is_null() {
        // Safety: the slot has a function of this type.
        let traverse: ffi::traverseproc = std::mem::transmute(slot);
        traverse(object, each::<F>, (&raw mut visit).cast());
    }
}

/// Pauses the collector of garbage, which would scan new objects repeatedly, and may run Python code.
pub struct Pause(bool);

impl Pause {
    pub unsafe fn new() -> Pause {
        Pause(ffi::PyGC_Disable() != 0)
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        if self.0 {
            // Safety: the GIL is held.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
