//! Drawing values from bytes. When the bytes are used up everything comes out as the first or
//! smallest choice.

use arbitrary::Unstructured;
use serde_json::{Map, Value, json};

pub(crate) struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// Whether all bytes are used.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number from 0 to `most`.
    pub(crate) fn up_to(&mut self, most: usize) -> usize {
        self.0.int_in_range(0..=most).unwrap_or_default()
    }

    pub(crate) fn wide(&mut self) -> u128 {
        self.0.arbitrary().unwrap_or_default()
    }

    /// True once in so many times.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.up_to(times - 1) == times - 1
    }

    pub(crate) fn pick<'b, T: ?Sized>(&mut self, of: &[&'b T]) -> &'b T {
        of[self.up_to(of.len() - 1)]
    }

    /// Text of a few characters, some of them odd.
    pub(crate) fn text(&mut self, most: usize) -> String {
        let length = self.up_to(most);
        let bytes = self.0.bytes(length.min(self.0.len())).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// One of the words mostly, else any text.
    pub(crate) fn word(&mut self, words: &[&str]) -> String {
        if self.one_in(8) {
            self.text(12)
        } else {
            self.pick(words).to_owned()
        }
    }

    /// Up to so many things.
    pub(crate) fn list<T>(&mut self, most: usize, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.up_to(most)).map(|_| item(self)).collect()
    }

    /// Any JSON with these names and words in it.
    pub(crate) fn json(&mut self, depth: usize, names: &[&str], words: &[&str]) -> Value {
        match self.up_to(if depth == 0 { 4 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.one_in(2)),
            2 => json!(self.up_to(5)),
            3 | 4 => json!(self.word(words)),
            5 | 6 => Value::Array(self.list(3, |input| input.json(depth - 1, names, words))),
            _ => Value::Object(self.object(depth, names, words)),
        }
    }

    /// Any JSON object with these names and words in it.
    pub(crate) fn object(
        &mut self,
        depth: usize,
        names: &[&str],
        words: &[&str],
    ) -> Map<String, Value> {
        let depth = depth.saturating_sub(1);
        self.list(4, |input| (input.word(names), input.json(depth, names, words)))
            .into_iter()
            .collect()
    }
}

/// The bytes as text, the odd ones replaced.
pub(crate) fn text_of(data: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(data)
}
