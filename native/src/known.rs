//! Messages that were packed or unpacked before: what they contained then, and their bytes.
//!
//! A message is what one item of a list is: an object of a model, a dict, or any other plain value. If it still refers
//! to the identical strings and numbers in the identical lists and dicts, its bytes are the same, and a copy of it is
//! what its bytes decode to. If nothing else refers to it, it is handed out again itself.

use crate::decode::Class;
use crate::encode::{fields_of, Trace};
use crate::object::{kind, references, referents, Declined, Entries, Fast, Kind, Obj, Ref};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

pub struct Message {
    pub object: Ref,
    pub packed: Ref,
    class: Obj,
    is_model: bool,
    /// The names of the fields that were set, of a model that was built by its class: they are among the contents.
    names_set: Option<Obj>,
    /// All in it, in the order in which the encoder reaches it; of a model, first what its attributes refer to.
    contents: Box<[Ref]>,
    /// Of a model, first the number of those; then of each container.
    lengths: Box<[u32]>,
}

// Safety: `class` is that of `object`, and `names_set` in `contents`; for the rest see `Ref`.
unsafe impl Send for Message {}
unsafe impl Sync for Message {}

impl Message {
    pub unsafe fn new(object: Ref, packed: Ref, names_set: Option<Obj>, trace: Trace) -> Message {
        let class: Obj = ffi::Py_TYPE(object.get()).cast();
        let contents = trace
            .objects
            .into_iter()
            .map(|each| Ref::borrowed(each))
            .collect();
        let is_model = kind(object.get()) == Kind::Other;
        Message {
            object,
            packed,
            class,
            is_model,
            names_set,
            contents,
            lengths: trace.lengths.into(),
        }
    }

    /// Whether the message contains what it contained.
    pub unsafe fn is_unchanged(&self) -> bool {
        let mut walk = Walk {
            objects: &self.contents,
            lengths: &self.lengths,
        };
        let object = self.object.get();
        if !self.is_model {
            return walk.contains(object);
        }
        if ffi::Py_TYPE(object).cast() != self.class {
            return false;
        }
        let Some(count) = walk.length() else {
            return false;
        };
        let mut same = 0;
        referents(object, |each| {
            same += 1;
            walk.next_is(each)
        });
        let Ok(fields) = fields_of(object) else {
            return false;
        };
        same == count && self.has_no_extra(count as usize, &fields) && walk.contains(fields.get())
    }

    /// Whether all dicts that the attributes refer to are empty, but for the fields.
    unsafe fn has_no_extra(&self, count: usize, fields: &Ref) -> bool {
        self.contents[..count].iter().all(|each| {
            each.get() == fields.get()
                || kind(each.get()) != Kind::Dict
                || ffi::PyDict_Size(each.get()) == 0
        })
    }

    /// Whether nobody else has the message or a part of it, and it is as its class would build it.
    pub unsafe fn is_returned(&self, class: Option<&Class>) -> bool {
        let object = self.object.get();
        if references(object) != 1 {
            return false;
        }
        let mut counted = self.contents.iter().map(Ref::get).filter(|each| {
            kind(*each).is_container() || ffi::Py_TYPE(*each) == &raw mut ffi::PySet_Type
        });
        // One is that of the message, or of what contains it, and one is in `contents`.
        if !counted.all(|each| references(each) == 2) {
            return false;
        }
        match (class, self.names_set) {
            (None, _) => !self.is_model && self.is_unchanged(),
            (Some(class), Some(names)) => {
                class.is_of(object)
                    && !class.has_weak_references(object)
                    && class.are_all(names)
                    && self.is_unchanged()
            }
            (Some(_), None) => false,
        }
    }
}

/// Compares what an object contains with what it contained before.
struct Walk<'a> {
    objects: &'a [Ref],
    lengths: &'a [u32],
}

impl Walk<'_> {
    fn next_is(&mut self, object: Obj) -> bool {
        match self.objects.split_first() {
            Some((first, rest)) if first.get() == object => {
                self.objects = rest;
                true
            }
            _ => false,
        }
    }

    fn length(&mut self) -> Option<u32> {
        let (first, rest) = self.lengths.split_first()?;
        self.lengths = rest;
        Some(*first)
    }

    unsafe fn contains(&mut self, object: Obj) -> bool {
        match kind(object) {
            Kind::List => {
                let length = ffi::PyList_Size(object);
                if self.length() != Some(length as u32) {
                    return false;
                }
                for place in 0..length {
                    let item = ffi::PyList_GetItem(object, place);
                    if !self.next_is(item) || !self.contains(item) {
                        return false;
                    }
                }
                true
            }
            Kind::Dict => {
                if self.length() != Some(ffi::PyDict_Size(object) as u32) {
                    return false;
                }
                for (key, item) in Entries::of(object) {
                    if !self.next_is(key) || !self.next_is(item) || !self.contains(item) {
                        return false;
                    }
                }
                true
            }
            _ => true,
        }
    }
}

/// Messages of a list, with the bytes of each.
#[pyclass(frozen, module = "holdfast._native")]
pub struct Known {
    pub messages: Vec<Arc<Message>>,
    #[pyo3(get)]
    packed: Py<PyList>,
    /// The total size in bytes.
    #[pyo3(get)]
    weight: usize,
}

impl Known {
    pub unsafe fn new(py: Python<'_>, messages: Vec<Arc<Message>>) -> Fast<Known> {
        let packed = list_of(messages.iter().map(|each| each.packed.get()))?;
        let weight = messages
            .iter()
            .map(|each| ffi::PyBytes_Size(each.packed.get()) as usize)
            .sum();
        let packed = Bound::from_owned_ptr(py, packed.into())
            .cast_into::<PyList>()
            .map_err(|_| Declined)?;
        Ok(Known {
            messages,
            packed: packed.unbind(),
            weight,
        })
    }
}

/// A list of objects.
pub unsafe fn list_of(objects: impl ExactSizeIterator<Item = Obj>) -> Fast<Ref> {
    let list = Ref::owned(ffi::PyList_New(objects.len() as isize))?;
    for (place, object) in objects.enumerate() {
        ffi::PyList_SetItem(list.get(), place as isize, Ref::borrowed(object).into());
    }
    Ok(list)
}

/// Finds messages of a list among known ones, which mostly come in the same order: a few of them were removed.
pub struct Lookup<'a> {
    messages: &'a [Arc<Message>],
    next: usize,
    /// How many more may be looked at: not all of them for each of many new ones.
    steps_left: usize,
}

impl<'a> Lookup<'a> {
    pub fn new(known: Option<&'a Known>) -> Lookup<'a> {
        let messages = known.map_or(&[][..], |known| &known.messages);
        Lookup {
            messages,
            next: 0,
            steps_left: 4 * messages.len(),
        }
    }

    pub fn find(&mut self, matches: impl Fn(&Message) -> bool) -> Option<&'a Arc<Message>> {
        for (ahead, message) in self.messages[self.next..].iter().enumerate() {
            if matches(message) {
                self.next += ahead + 1;
                return Some(message);
            }
            self.steps_left = self.steps_left.checked_sub(1)?;
        }
        None
    }
}
