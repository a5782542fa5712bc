//! Unpacks values into new objects, and builds messages of well-known classes.

use crate::encode::{fields_of, SHAPED_MARK};
use crate::known::Message;
use crate::object::{kind, utf8, Declined, Entries, Fast, Kind, Obj, Ref, MAX_DEPTH};
use pyo3::ffi;

/// A class of messages: a plan of Python's, taken apart. The tuple that it is read from outlives it.
pub struct Class {
    class: Obj,
    names: Vec<(Obj, &'static [u8])>,
    all_names: Obj,
    /// The descriptors of `__dict__`, the names of the fields that were set, extra and private fields.
    members: [Obj; 4],
    keeps_extra: bool,
    /// Where an instance has its list of weak references; 0 if it has none.
    weak_offset: isize,
    _plan: Ref,
}

impl Class {
    /// Read `(class, names, all_names, members, keeps_extra, weak_offset)`.
    pub unsafe fn of(plan: Ref) -> Fast<Class> {
        if size_of_tuple(plan.get()) != Some(6) {
            return Err(Declined);
        }
        let part = |place| ffi::PyTuple_GetItem(plan.get(), place);
        let (class, names, all_names, members) = (part(0), part(1), part(2), part(3));
        if ffi::PyType_Check(class) == 0
            || size_of_tuple(members) != Some(4)
            || size_of_tuple(names).is_none()
        {
            return Err(Declined);
        }
        let mut read = Vec::new();
        for place in 0..ffi::PyTuple_Size(names) {
            let name = ffi::PyTuple_GetItem(names, place);
            if kind(name) != Kind::Str {
                return Err(Declined);
            }
            // Safety: the text lives as long as the name, and that as long as the plan.
            read.push((name, utf8(name)?));
        }
        let member = |place| ffi::PyTuple_GetItem(members, place);
        Ok(Class {
            class,
            names: read,
            all_names,
            members: [member(0), member(1), member(2), member(3)],
            keeps_extra: part(4) == ffi::Py_True(),
            weak_offset: ffi::PyLong_AsSsize_t(part(5)),
            _plan: plan,
        })
    }

    /// Build a message with these fields, which are in the order of the names. Returns it with its set of names.
    unsafe fn build(&self, fields: Ref) -> Fast<Built> {
        let class: *mut ffi::PyTypeObject = self.class.cast();
        let slot = ffi::PyType_GetSlot(class, ffi::Py_tp_alloc);
        if slot.is_null() {
            return Err(Declined);
        }
        // Safety: the slot has a function of this type. `object.__new__` does the same, for a class that is plain data.
        let allocate: ffi::allocfunc = std::mem::transmute(slot);
        let message = Ref::owned(allocate(class, 0))?;
        let names = Ref::owned(ffi::PySet_New(self.all_names))?;
        let extra = if self.keeps_extra {
            Ref::owned(ffi::PyDict_New())?
        } else {
            Ref::borrowed(ffi::Py_None())
        };
        let private = Ref::borrowed(ffi::Py_None());
        let names_set = names.get();
        for (member, value) in self
            .members
            .into_iter()
            .zip([fields, names, extra, private])
        {
            let slot = ffi::PyType_GetSlot(ffi::Py_TYPE(member), ffi::Py_tp_descr_set);
            if slot.is_null() {
                return Err(Declined);
            }
            // Safety: the slot has a function of this type; the descriptors are of slots of pydantic's base class.
            let set: ffi::descrsetfunc = std::mem::transmute(slot);
            if set(member, message.get(), value.get()) != 0 {
                ffi::PyErr_Clear();
                return Err(Declined);
            }
        }
        Ok(Built {
            object: message,
            names_set: Some(names_set),
        })
    }

    pub unsafe fn is_of(&self, message: Obj) -> bool {
        ffi::Py_TYPE(message).cast() == self.class
    }

    /// Whether all fields are among the names of those that were set, and nothing else.
    pub unsafe fn are_all(&self, names: Obj) -> bool {
        let same = ffi::PySet_Size(names) == self.names.len() as isize
            && self
                .names
                .iter()
                .all(|(name, _)| ffi::PySet_Contains(names, *name) == 1);
        ffi::PyErr_Clear();
        same
    }

    pub unsafe fn has_weak_references(&self, message: Obj) -> bool {
        // Safety: `__weakrefoffset__` of its class is where a pointer to them is.
        self.weak_offset != 0
            && !message
                .byte_offset(self.weak_offset)
                .cast::<Obj>()
                .read()
                .is_null()
    }

    /// Build a message like one of this class that is unchanged, which shares only immutable values with it.
    unsafe fn copy(&self, message: Obj) -> Fast<Built> {
        let fields = fields_of(message)?;
        if ffi::PyDict_Size(fields.get()) != self.names.len() as isize {
            return Err(Declined);
        }
        for ((name, _), (declared, _)) in Entries::of(fields.get()).zip(&self.names) {
            if name != *declared
                && (kind(name) != Kind::Str || ffi::PyUnicode_Compare(name, *declared) != 0)
            {
                return Err(Declined); // in another order: decoded
            }
        }
        self.build(copy(fields.get())?)
    }
}

/// A new object that nobody has yet.
pub struct Built {
    pub object: Ref,
    /// Of a model, the names of the fields that were set: borrowed from it.
    pub names_set: Option<Obj>,
}

impl Built {
    fn plain(object: Ref) -> Built {
        Built {
            object,
            names_set: None,
        }
    }
}

unsafe fn size_of_tuple(object: Obj) -> Option<isize> {
    (ffi::Py_TYPE(object) == &raw mut ffi::PyTuple_Type).then(|| ffi::PyTuple_Size(object))
}

/// Copy a plain value.
unsafe fn copy(value: Obj) -> Fast<Ref> {
    match kind(value) {
        Kind::Dict if ffi::PyDict_Size(value) == 0 => Ref::owned(ffi::PyDict_New()),
        Kind::Dict => {
            let copied = Ref::owned(ffi::PyDict_Copy(value))?;
            for (key, item) in Entries::of(value) {
                if kind(item).is_container() {
                    let own = copy(item)?;
                    if ffi::PyDict_SetItem(copied.get(), key, own.get()) != 0 {
                        ffi::PyErr_Clear();
                        return Err(Declined);
                    }
                }
            }
            Ok(copied)
        }
        Kind::List => {
            let length = ffi::PyList_Size(value);
            let copied = Ref::owned(ffi::PyList_New(length))?;
            for place in 0..length {
                let own = copy(ffi::PyList_GetItem(value, place))?;
                ffi::PyList_SetItem(copied.get(), place, own.into());
            }
            Ok(copied)
        }
        _ => Ok(Ref::borrowed(value)),
    }
}

/// The number of the class of a message that is packed on its own; None if it is another value.
pub fn number_of(packed: &[u8]) -> Option<u8> {
    match packed {
        [0x93, 0xc0, number @ 0..=0x7f, ..] => Some(*number),
        _ => None,
    }
}

/// Unpack a message, by its class, or a plain value on its own.
pub unsafe fn decode(packed: &[u8], class: Option<&Class>) -> Fast<Built> {
    if let Some(class) = class {
        let mut reader = Reader {
            data: packed,
            at: SHAPED_MARK.len() + 1,
        };
        let fields = reader.fields(class)?;
        reader.end()?;
        return class.build(fields);
    }
    let mut reader = Reader {
        data: packed,
        at: 0,
    };
    let value = reader.value(1)?;
    reader.end()?;
    Ok(Built::plain(value))
}

/// Reads packed bytes, which may be forged: each byte is checked, and whatever the encoder does not write is declined.
struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn end(&self) -> Fast<()> {
        if self.at == self.data.len() {
            Ok(())
        } else {
            Err(Declined)
        }
    }

    fn take(&mut self, size: usize) -> Fast<&'a [u8]> {
        let end = self.at.checked_add(size).ok_or(Declined)?;
        let taken = self.data.get(self.at..end).ok_or(Declined)?;
        self.at = end;
        Ok(taken)
    }

    fn first(&mut self) -> Fast<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self, width: usize) -> Fast<u64> {
        Ok(self
            .take(width)?
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Read a length of this many bytes, of which at least as many follow.
    fn length(&mut self, width: usize) -> Fast<usize> {
        let length = self.number(width)? as usize;
        if length > self.data.len() - self.at {
            return Err(Declined);
        }
        Ok(length)
    }

    /// Read the fields of a message, in the order of its class.
    unsafe fn fields(&mut self, class: &Class) -> Fast<Ref> {
        let length = match self.first()? {
            first @ 0x80..=0x8f => usize::from(first & 0x0f),
            0xde => self.length(2)?,
            _ => return Err(Declined),
        };
        if length != class.names.len() {
            return Err(Declined);
        }
        let fields = Ref::owned(ffi::PyDict_New())?;
        for (name, text) in &class.names {
            let first = self.first()?;
            if self.text(first)? != Some(text) {
                return Err(Declined);
            }
            let value = self.value(3)?;
            set(&fields, *name, &value)?;
        }
        Ok(fields)
    }

    /// Read the content of a string after its first byte; None if it is something else.
    fn text(&mut self, first: u8) -> Fast<Option<&'a [u8]>> {
        let size = match first {
            0xa0..=0xbf => usize::from(first & 0x1f),
            0xd9..=0xdb => self.length(1 << (first - 0xd9))?,
            _ => return Ok(None),
        };
        self.take(size).map(Some)
    }

    unsafe fn value(&mut self, depth: usize) -> Fast<Ref> {
        let first = self.first()?;
        match first {
            0x80..=0x8f => self.dict(usize::from(first & 0x0f), depth),
            0xde | 0xdf => {
                let length = self.length(2 << (first - 0xde))?;
                self.dict(length, depth)
            }
            0x90..=0x9f => self.list(usize::from(first & 0x0f), depth),
            0xdc | 0xdd => {
                let length = self.length(2 << (first - 0xdc))?;
                self.list(length, depth)
            }
            _ => self.scalar(first),
        }
    }

    unsafe fn scalar(&mut self, first: u8) -> Fast<Ref> {
        if let Some(text) = self.text(first)? {
            return Ref::owned(ffi::PyUnicode_DecodeUTF8(
                text.as_ptr().cast(),
                text.len() as isize,
                std::ptr::null(),
            ));
        }
        match first {
            0xc0 => Ok(Ref::borrowed(ffi::Py_None())),
            0xc2 => Ok(Ref::borrowed(ffi::Py_False())),
            0xc3 => Ok(Ref::borrowed(ffi::Py_True())),
            0x00..=0x7f => Ref::owned(ffi::PyLong_FromLong(first.into())),
            0xe0..=0xff => Ref::owned(ffi::PyLong_FromLong((first as i8).into())),
            0xcc..=0xcf => Ref::owned(ffi::PyLong_FromUnsignedLongLong(
                self.number(1 << (first - 0xcc))?,
            )),
            0xd0..=0xd3 => {
                let width = 1 << (first - 0xd0);
                let unused = 64 - 8 * width;
                let number = (self.number(width)? << unused) as i64 >> unused;
                Ref::owned(ffi::PyLong_FromLongLong(number))
            }
            0xcb => Ref::owned(ffi::PyFloat_FromDouble(f64::from_bits(self.number(8)?))),
            0xc4..=0xc6 => {
                let size = self.length(1 << (first - 0xc4))?;
                let bytes = self.take(size)?;
                Ref::owned(ffi::PyBytes_FromStringAndSize(
                    bytes.as_ptr().cast(),
                    size as isize,
                ))
            }
            _ => Err(Declined),
        }
    }

    unsafe fn list(&mut self, length: usize, depth: usize) -> Fast<Ref> {
        self.enter(length, depth)?;
        let list = Ref::owned(ffi::PyList_New(length as isize))?;
        for place in 0..length {
            let item = self.value(depth + 1)?;
            ffi::PyList_SetItem(list.get(), place as isize, item.into());
        }
        Ok(list)
    }

    unsafe fn dict(&mut self, length: usize, depth: usize) -> Fast<Ref> {
        self.enter(length, depth)?;
        let dict = Ref::owned(ffi::PyDict_New())?;
        for _ in 0..length {
            let first = self.first()?;
            let key = self.scalar(first)?;
            let value = self.value(depth + 1)?;
            set(&dict, key.get(), &value)?;
        }
        if ffi::PyDict_Size(dict.get()) != length as isize {
            return Err(Declined);
        }
        Ok(dict)
    }

    fn enter(&self, length: usize, depth: usize) -> Fast<()> {
        if depth > MAX_DEPTH || length > self.data.len() - self.at {
            return Err(Declined);
        }
        Ok(())
    }
}

unsafe fn set(dict: &Ref, key: Obj, value: &Ref) -> Fast<()> {
    if ffi::PyDict_SetItem(dict.get(), key, value.get()) != 0 {
        ffi::PyErr_Clear();
        return Err(Declined);
    }
    Ok(())
}

/// Build a value like a known one that is unchanged.
pub unsafe fn copy_known(message: &Message, class: Option<&Class>) -> Fast<Built> {
    if !message.is_unchanged() {
        return Err(Declined);
    }
    let object = message.object.get();
    match class {
        None => copy(object).map(Built::plain),
        Some(class) if class.is_of(object) => class.copy(object),
        Some(_) => Err(Declined),
    }
}
