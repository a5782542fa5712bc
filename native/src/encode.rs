//! Packs values by their exact types, in the canonical form of `docs/format.md`.

use crate::object::{
    content, kind, referents, utf8, Declined, Entries, Fast, Kind, Obj, Ref, MAX_DEPTH,
};
use pyo3::ffi;

/// Up to how many values one may have, where a list or dict counts for eight more: far fewer than the format allows.
const MAX_VALUES: usize = 1 << 20;
const CONTAINER_COST: usize = 8;

const SHAPED: u8 = 48;
pub const SHAPED_MARK: [u8; 2] = [0x93, 0xc0];
pub const ESCAPE: u8 = 0xc1;

/// A class of messages: its number in the format, and the names of its fields, a frozenset of str.
#[derive(Clone, Copy)]
pub struct Model {
    pub class: Obj,
    number: u8,
    names: Obj,
}

/// The classes of messages that Python has met.
pub struct Models(Vec<Model>);

impl Models {
    /// Read `MODEL_NUMBERS` and `MODEL_FIELDS`, which do not change during a call.
    pub unsafe fn of(numbers: Obj, names: Obj) -> Models {
        let mut models = Vec::with_capacity(ffi::PyDict_Size(numbers) as usize);
        for (class, number) in Entries::of(numbers) {
            let fields = Entries::of(names).find(|(other, _)| *other == class);
            let number = ffi::PyLong_AsLong(number);
            if let (Some((_, names)), 0..=127) = (fields, number) {
                models.push(Model {
                    class,
                    number: number as u8,
                    names,
                });
            }
        }
        Models(models)
    }

    pub unsafe fn find(&self, object: Obj) -> Option<Model> {
        let class = ffi::Py_TYPE(object).cast();
        self.0.iter().find(|model| model.class == class).copied()
    }
}

/// What a value contains: the objects in it, in the order in which they are reached, and the lengths of containers.
#[derive(Default)]
pub struct Trace {
    pub objects: Vec<Obj>,
    pub lengths: Vec<u32>,
}

impl Trace {
    /// Return what a plain value contains, or a message without extra fields.
    pub unsafe fn of(value: Obj, is_model: bool) -> Fast<Trace> {
        let mut trace = Trace::default();
        if is_model {
            let fields = fields_of(value)?;
            trace.attributes(value, &fields)?;
            trace.contents(fields.get());
        } else {
            trace.contents(value);
        }
        Ok(trace)
    }

    /// Add what the attributes of a message refer to, which must show its fields.
    unsafe fn attributes(&mut self, message: Obj, fields: &Ref) -> Fast<()> {
        let mut shows_fields = false;
        referents(message, |object| {
            shows_fields |= object == fields.get();
            self.objects.push(object);
            true
        });
        self.lengths.push(self.objects.len() as u32);
        if shows_fields {
            Ok(())
        } else {
            Err(Declined)
        }
    }

    unsafe fn contents(&mut self, value: Obj) {
        match kind(value) {
            Kind::List => {
                let length = ffi::PyList_Size(value);
                self.lengths.push(length as u32);
                for place in 0..length {
                    let item = ffi::PyList_GetItem(value, place);
                    self.objects.push(item);
                    self.contents(item);
                }
            }
            Kind::Dict => {
                self.lengths.push(ffi::PyDict_Size(value) as u32);
                for (key, item) in Entries::of(value) {
                    self.objects.extend([key, item]);
                    self.contents(item);
                }
            }
            _ => {}
        }
    }
}

pub struct Encoder<'a> {
    pub out: Vec<u8>,
    models: &'a Models,
    limit: usize,
    values_left: usize,
    /// Whether a list or dict may contain messages; those do not contain others.
    may_nest: bool,
}

impl<'a> Encoder<'a> {
    pub fn new(models: &'a Models, limit: usize) -> Encoder<'a> {
        Encoder {
            out: Vec::with_capacity(1024),
            models,
            limit,
            values_left: 0,
            may_nest: true,
        }
    }

    /// Write a value on its own into `out`, which is emptied first.
    pub unsafe fn top(&mut self, value: Obj) -> Fast<()> {
        self.out.clear();
        self.values_left = MAX_VALUES;
        match kind(value) {
            Kind::Other => {
                let model = self.models.find(value).ok_or(Declined)?;
                self.message(value, model)?;
            }
            Kind::List => {
                self.value(value, 1)?;
                if self.out.starts_with(&SHAPED_MARK) {
                    self.out.insert(0, ESCAPE);
                }
            }
            _ => self.value(value, 1)?,
        }
        self.check()
    }

    /// Write a value on its own that contains no messages, and return what it contains.
    pub unsafe fn traced(&mut self, value: Obj) -> Fast<Trace> {
        self.may_nest = false;
        let done = self.top(value);
        self.may_nest = true;
        done?;
        Trace::of(value, kind(value) == Kind::Other)
    }

    fn check(&self) -> Fast<()> {
        if self.out.len() > self.limit {
            return Err(Declined);
        }
        Ok(())
    }

    /// Write a message of a well-known class: None, the number of the class, the fields.
    unsafe fn message(&mut self, message: Obj, model: Model) -> Fast<()> {
        let fields = fields_of(message)?;
        if ffi::PyDict_Size(fields.get()) != ffi::PySet_Size(model.names) || !has_no_extra(message)?
        {
            return Err(Declined);
        }
        for (name, _) in Entries::of(fields.get()) {
            // An exact str has a hash without code of its own.
            if kind(name) != Kind::Str || ffi::PySet_Contains(model.names, name) != 1 {
                return Err(Declined);
            }
        }
        self.out.extend_from_slice(&[0x93, 0xc0, model.number]);
        let may_nest = std::mem::replace(&mut self.may_nest, false);
        let done = self.value(fields.get(), 2);
        self.may_nest = may_nest;
        done
    }

    unsafe fn value(&mut self, value: Obj, depth: usize) -> Fast<()> {
        match kind(value) {
            Kind::List => {
                let length = ffi::PyList_Size(value) as usize;
                self.enter(length, depth)?;
                self.header(length, 0x90, 0xdc);
                for place in 0..length {
                    let item = ffi::PyList_GetItem(value, place as isize);
                    self.value(item, depth + 1)?;
                }
                Ok(())
            }
            Kind::Dict => {
                let length = ffi::PyDict_Size(value) as usize;
                self.enter(length, depth)?;
                self.header(length, 0x80, 0xde);
                for (key, item) in Entries::of(value) {
                    self.scalar(key)?;
                    self.value(item, depth + 1)?;
                }
                Ok(())
            }
            Kind::Other if self.may_nest => {
                let model = self.models.find(value).ok_or(Declined)?;
                self.nested(value, model)
            }
            _ => self.scalar(value),
        }
    }

    unsafe fn enter(&mut self, length: usize, depth: usize) -> Fast<()> {
        if depth > MAX_DEPTH {
            return Err(Declined);
        }
        self.values_left = self
            .values_left
            .checked_sub(length + CONTAINER_COST)
            .ok_or(Declined)?;
        Ok(())
    }

    /// Write a message that is part of a list or dict: an ext.
    unsafe fn nested(&mut self, message: Obj, model: Model) -> Fast<()> {
        let start = self.out.len();
        self.message(message, model)?;
        let size = self.out.len() - start;
        let header: Vec<u8> = match size {
            4 | 8 | 16 => vec![0xd6 + (size.trailing_zeros() as u8 - 2), SHAPED],
            0..=0xff => vec![0xc7, size as u8, SHAPED],
            0x100..=0xffff => [&[0xc8][..], &(size as u16).to_be_bytes(), &[SHAPED]].concat(),
            _ => [&[0xc9][..], &(size as u32).to_be_bytes(), &[SHAPED]].concat(),
        };
        self.out.splice(start..start, header);
        Ok(())
    }

    unsafe fn scalar(&mut self, value: Obj) -> Fast<()> {
        match kind(value) {
            Kind::Str => {
                let text = utf8(value)?;
                match text.len() {
                    size @ 0..=31 => self.out.push(0xa0 | size as u8),
                    size @ 32..=0xff => self.out.extend_from_slice(&[0xd9, size as u8]),
                    size => self.sized(size, 0xda),
                }
                self.out.extend_from_slice(text);
                self.check()?;
            }
            Kind::None => self.out.push(0xc0),
            Kind::Bool => self
                .out
                .push(if value == ffi::Py_True() { 0xc3 } else { 0xc2 }),
            Kind::Int => self.integer(value)?,
            Kind::Float => {
                self.out.push(0xcb);
                self.out
                    .extend_from_slice(&ffi::PyFloat_AsDouble(value).to_be_bytes());
            }
            Kind::Bytes => {
                let bytes = content(value);
                match bytes.len() {
                    size @ 0..=0xff => self.out.extend_from_slice(&[0xc4, size as u8]),
                    size => self.sized(size, 0xc5),
                }
                self.out.extend_from_slice(bytes);
                self.check()?;
            }
            _ => return Err(Declined),
        }
        Ok(())
    }

    unsafe fn integer(&mut self, value: Obj) -> Fast<()> {
        let mut overflow = 0;
        let number = ffi::PyLong_AsLongLongAndOverflow(value, &mut overflow);
        if overflow != 0 {
            let number = ffi::PyLong_AsUnsignedLongLong(value);
            if overflow < 0 || !ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_Clear();
                return Err(Declined);
            }
            self.out.push(0xcf);
            self.out.extend_from_slice(&number.to_be_bytes());
            return Ok(());
        }
        match number {
            -32..=0x7f => self.out.push(number as u8),
            0x80..=0xff => self.out.extend_from_slice(&[0xcc, number as u8]),
            0x100..=0xffff => self.wide(0xcd, &(number as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.wide(0xce, &(number as u32).to_be_bytes()),
            0x1_0000_0000.. => self.wide(0xcf, &number.to_be_bytes()),
            -0x80..=-33 => self.wide(0xd0, &(number as i8).to_be_bytes()),
            -0x8000..=-0x81 => self.wide(0xd1, &(number as i16).to_be_bytes()),
            -0x8000_0000..=-0x8001 => self.wide(0xd2, &(number as i32).to_be_bytes()),
            _ => self.wide(0xd3, &number.to_be_bytes()),
        }
        Ok(())
    }

    fn wide(&mut self, first: u8, bytes: &[u8]) {
        self.out.push(first);
        self.out.extend_from_slice(bytes);
    }

    /// Write the header of a list or dict.
    fn header(&mut self, length: usize, short: u8, long: u8) {
        if length < 16 {
            self.out.push(short | length as u8);
        } else {
            self.sized(length, long);
        }
    }

    /// Write a length of two bytes after `first`, or of four after the next one. No value that is accepted has more.
    fn sized(&mut self, length: usize, first: u8) {
        match u16::try_from(length) {
            Ok(length) => self.wide(first, &length.to_be_bytes()),
            Err(_) => self.wide(first + 1, &(length as u32).to_be_bytes()),
        }
    }
}

/// The fields of a message, declined if they are not an exact dict.
pub unsafe fn fields_of(message: Obj) -> Fast<Ref> {
    let fields = Ref::owned(ffi::PyObject_GenericGetDict(message, std::ptr::null_mut()))?;
    if kind(fields.get()) == Kind::Dict {
        Ok(fields)
    } else {
        Err(Declined)
    }
}

/// Whether a message has no extra fields.
unsafe fn has_no_extra(message: Obj) -> Fast<bool> {
    let extra = Ref::owned(ffi::PyObject_GenericGetAttr(message, EXTRA.get()))?;
    Ok(match kind(extra.get()) {
        Kind::None => true,
        Kind::Dict => ffi::PyDict_Size(extra.get()) == 0,
        _ => false,
    })
}

/// The interned name of an attribute.
pub struct Name(std::sync::OnceLock<Ref>, &'static std::ffi::CStr);

impl Name {
    pub unsafe fn get(&self) -> Obj {
        self.0
            .get_or_init(|| Ref::borrowed(ffi::PyUnicode_InternFromString(self.1.as_ptr())))
            .get()
    }
}

static EXTRA: Name = Name(std::sync::OnceLock::new(), c"__pydantic_extra__");
