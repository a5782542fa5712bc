//! The fast paths of Holdfast's codec, on request in place of those of `holdfast.codec.core` in Python.
//!
//! A function returns None where a value is not for the fast path: Python does the call again, and raises what there is
//! to raise. What it returns otherwise is what Python would return; see `docs/decisions/0081-native-core.md`.

mod decode;
mod encode;
mod known;
mod object;

use decode::{copy_known, decode, number_of, Built, Class};
use encode::{Encoder, Models, Trace, ESCAPE, SHAPED_MARK};
use known::{list_of, Known, Lookup, Message};
use object::{content, kind, new_bytes, Declined, Fast, Kind, Pause, Ref};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use pyo3::{ffi, Py};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Counts the calls of a function, and those that it declined.
struct Count(AtomicU64, AtomicU64);

impl Count {
    const fn new() -> Count {
        Count(AtomicU64::new(0), AtomicU64::new(0))
    }

    /// Run a function. What it panics about is for Python to report, as everything else.
    fn run<T>(&self, function: impl FnOnce() -> Fast<T>) -> Option<T> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(function)).unwrap_or(Err(Declined));
        if result.is_err() {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        result.ok()
    }
}

static PACKS: Count = Count::new();
static MESSAGE_PACKS: Count = Count::new();
static READS: Count = Count::new();
static MESSAGE_READS: Count = Count::new();

/// The core, with the classes of messages that Python has met so far.
#[pyclass(frozen, module = "holdfast._native")]
struct Core {
    numbers: Py<PyDict>,
    names: Py<PyDict>,
}

#[pymethods]
impl Core {
    /// `numbers` are those of classes of messages in the format, and `names` those of the fields of each.
    #[new]
    fn new(numbers: Py<PyDict>, names: Py<PyDict>) -> Core {
        Core { numbers, names }
    }

    /// Pack a value on its own; None if it is not plain.
    fn pack(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        max_bytes: usize,
    ) -> Option<Py<PyBytes>> {
        PACKS.run(|| {
            // Safety: the GIL is held.
            unsafe {
                let models = self.models();
                let mut encoder = Encoder::new(&models, max_bytes);
                encoder.top(value.as_ptr())?;
                as_bytes(py, new_bytes(&encoder.out)?)
            }
        })
    }

    /// Pack values, each on its own. Those that are not plain are None.
    fn pack_each(&self, values: &Bound<'_, PyList>, max_bytes: usize) -> Vec<Option<Py<PyBytes>>> {
        // Safety: the GIL is held.
        let models = unsafe { self.models() };
        let mut encoder = Encoder::new(&models, max_bytes);
        let pack = |value: Bound<'_, PyAny>| {
            PACKS.run(|| unsafe {
                encoder.top(value.as_ptr())?;
                as_bytes(value.py(), new_bytes(&encoder.out)?)
            })
        };
        values.iter().map(pack).collect()
    }

    /// Pack the items of a list, of which some may be known, and return what is known of them; `seen` itself if that is
    /// the same. None unless all of them are plain.
    fn pack_messages(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyList>,
        seen: Option<Bound<'_, Known>>,
        max_bytes: usize,
    ) -> Option<Py<Known>> {
        MESSAGE_PACKS.run(|| {
            // Safety: the GIL is held.
            unsafe {
                let models = self.models();
                let mut encoder = Encoder::new(&models, max_bytes);
                let mut lookup = Lookup::new(seen.as_ref().map(Bound::get));
                let mut messages = Vec::with_capacity(values.len());
                let mut known = 0;
                for place in 0..values.len() {
                    let value = ffi::PyList_GetItem(values.as_ptr(), place as isize);
                    if let Some(message) = lookup.find(|each| each.object.get() == value) {
                        if message.is_unchanged() {
                            messages.push(message.clone());
                            known += 1;
                            continue;
                        }
                    }
                    let trace = encoder.traced(value)?;
                    let packed = new_bytes(&encoder.out)?;
                    messages.push(Arc::new(Message::new(
                        Ref::borrowed(value),
                        packed,
                        None,
                        trace,
                    )));
                }
                match seen {
                    Some(seen) if known == messages.len() && known == seen.get().messages.len() => {
                        Ok(seen.unbind())
                    }
                    _ => Py::new(py, Known::new(py, messages)?).map_err(|_| Declined),
                }
            }
        })
    }

    /// Unpack items, each packed on its own. None unless all of them are plain, or messages.
    #[staticmethod]
    fn unpack_each(
        py: Python<'_>,
        items: &Bound<'_, PyList>,
        max_bytes: usize,
        plan_of: &Bound<'_, PyAny>,
    ) -> Option<Py<PyList>> {
        READS.run(|| {
            // Safety: the GIL is held.
            unsafe {
                let classes = Classes::of(items, plan_of)?;
                let _pause = Pause::new();
                let values = Ref::owned(ffi::PyList_New(items.len() as isize))?;
                for place in 0..items.len() {
                    let packed = content(ffi::PyList_GetItem(items.as_ptr(), place as isize));
                    let built = decode(packed, classes.class_of(packed, max_bytes)?)?;
                    ffi::PyList_SetItem(values.get(), place as isize, built.object.into());
                }
                as_list(py, values)
            }
        })
    }

    /// Unpack the items of a list into objects that nobody else has: known ones that came back unchanged, copies of
    /// known ones, or new ones. Returns them, and what is known of them. None unless all of them are plain.
    ///
    /// `plan_of` returns the parts of the class of a number; see `Class`.
    #[staticmethod]
    fn unpack_messages(
        py: Python<'_>,
        items: &Bound<'_, PyList>,
        known: Vec<Bound<'_, Known>>,
        max_bytes: usize,
        plan_of: &Bound<'_, PyAny>,
    ) -> Option<(Py<PyList>, Py<Known>)> {
        MESSAGE_READS.run(|| {
            // Safety: the GIL is held.
            unsafe {
                let classes = Classes::of(items, plan_of)?;
                let _pause = Pause::new();
                let mut lookups: Vec<Lookup> = known
                    .iter()
                    .map(|each| Lookup::new(Some(each.get())))
                    .collect();
                let mut messages = Vec::with_capacity(items.len());
                for place in 0..items.len() {
                    let item = ffi::PyList_GetItem(items.as_ptr(), place as isize);
                    let packed = content(item);
                    let class = classes.class_of(packed, max_bytes)?;
                    let is_it = |each: &Message| {
                        each.packed.get() == item || content(each.packed.get()) == packed
                    };
                    let mut like = None;
                    let mut returned = None;
                    for lookup in &mut lookups {
                        like = lookup.find(is_it).or(like);
                        if returned.is_none() {
                            returned = like.filter(|each| each.is_returned(class));
                        }
                    }
                    if let Some(message) = returned {
                        messages.push(message.clone());
                        continue;
                    }
                    let copied = like.map_or(Err(Declined), |each| copy_known(each, class));
                    let Built { object, names_set } = copied.or_else(|_| decode(packed, class))?;
                    let trace = Trace::of(object.get(), class.is_some())?;
                    messages.push(Arc::new(Message::new(
                        object,
                        Ref::borrowed(item),
                        names_set,
                        trace,
                    )));
                }
                let values = list_of(messages.iter().map(|each| each.object.get()))?;
                let known = Py::new(py, Known::new(py, messages)?).map_err(|_| Declined)?;
                Ok((as_list(py, values)?, known))
            }
        })
    }
}

impl Core {
    unsafe fn models(&self) -> Models {
        Models::of(self.numbers.as_ptr(), self.names.as_ptr())
    }
}

/// The classes of packed messages, by number.
struct Classes(Vec<Option<Class>>);

impl Classes {
    /// Find the classes of all items. This runs code of Python's, and so comes before everything else.
    unsafe fn of(items: &Bound<'_, PyList>, plan_of: &Bound<'_, PyAny>) -> Fast<Classes> {
        let mut classes = Vec::new();
        for place in 0..items.len() {
            let item = ffi::PyList_GetItem(items.as_ptr(), place as isize);
            if item.is_null() || kind(item) != Kind::Bytes {
                ffi::PyErr_Clear();
                return Err(Declined);
            }
            let Some(number) = number_of(content(item)).map(usize::from) else {
                continue;
            };
            if classes.len() <= number {
                classes.resize_with(number + 1, || None);
            }
            if classes[number].is_none() {
                let plan = plan_of.call1((number,)).map_err(|_| Declined)?;
                classes[number] = Some(Class::of(Ref::borrowed(plan.as_ptr()))?);
            }
        }
        Ok(Classes(classes))
    }

    /// The class of a message, None of another value.
    fn class_of(&self, packed: &[u8], max_bytes: usize) -> Fast<Option<&Class>> {
        if packed.len() > max_bytes || packed.first() == Some(&ESCAPE) {
            return Err(Declined);
        }
        match number_of(packed) {
            None if packed.starts_with(&SHAPED_MARK) => Err(Declined),
            None => Ok(None),
            Some(number) => self
                .0
                .get(usize::from(number))
                .and_then(Option::as_ref)
                .map(Some)
                .ok_or(Declined),
        }
    }
}

unsafe fn as_list(py: Python<'_>, list: Ref) -> Fast<Py<PyList>> {
    let list = Bound::from_owned_ptr(py, list.into());
    list.cast_into::<PyList>()
        .map(Bound::unbind)
        .map_err(|_| Declined)
}

unsafe fn as_bytes(py: Python<'_>, bytes: Ref) -> Fast<Py<PyBytes>> {
    let bytes = Bound::from_owned_ptr(py, bytes.into());
    bytes
        .cast_into::<PyBytes>()
        .map(Bound::unbind)
        .map_err(|_| Declined)
}

/// How often each function was called, and how often it declined.
#[pyfunction]
fn counts() -> Vec<(&'static str, u64, u64)> {
    let read = |name, count: &Count| {
        (
            name,
            count.0.load(Ordering::Relaxed),
            count.1.load(Ordering::Relaxed),
        )
    };
    vec![
        read("pack", &PACKS),
        read("pack_messages", &MESSAGE_PACKS),
        read("unpack_each", &READS),
        read("unpack_messages", &MESSAGE_READS),
    ]
}

/// Panic, for a test: None, as of everything that is declined, shows that nobody sees it.
#[pyfunction]
fn panics() -> Option<()> {
    PACKS.run(|| panic!("asked for"))
}

#[pymodule]
pub fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // The hook is that of this library alone: nobody could do anything about what it prints.
    std::panic::set_hook(Box::new(|_| {}));
    module.add_class::<Core>()?;
    module.add_class::<Known>()?;
    module.add_function(wrap_pyfunction!(panics, module)?)?;
    module.add_function(wrap_pyfunction!(counts, module)?)
}
