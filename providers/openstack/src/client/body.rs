//! Bodies: the object or the list in its envelope, and the link to the next page.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap as _,
};
use serde_json::Value;

use crate::api::from_json;

/// A body with the requested value under a key, and `<key>_links` beside it.
#[derive(Debug)]
pub(super) struct Unwrapped<T> {
    pub value: T,
    /// The link to the next page.
    pub next: Option<String>,
}

/// Parses a body with one object. Without a key the whole body is the object.
///
/// # Errors
/// It is not JSON, was cut short, lacks the key, or has something else under it.
pub(super) fn unwrap_object<T: DeserializeOwned>(
    body: &[u8],
    key: &'static str,
) -> Result<T, serde_json::Error> {
    from_json(unwrap_envelope(body, key)?.value)
}

/// A row that cannot be parsed, and why.
#[derive(Debug)]
pub(super) struct BadRow {
    pub row: Value,
    pub error: serde_json::Error,
}

/// Parses a body with a list of objects. An element that is null counts as none.
///
/// # Errors
/// As for one object. An object that cannot be parsed is an error in its place: it must not look
/// deleted.
pub(super) fn unwrap_list<T: DeserializeOwned>(
    body: &[u8],
    key: &'static str,
) -> Result<Unwrapped<Vec<Result<T, BadRow>>>, serde_json::Error> {
    let Unwrapped { value, next } = unwrap_envelope::<Vec<Value>>(body, key)?;
    let mut objects = Vec::with_capacity(value.len());
    for row in value.into_iter().filter(|row| !row.is_null()) {
        objects.push(match from_json(row.clone()) {
            Ok(object) => Ok(object),
            Err(error) => Err(BadRow { row, error }),
        });
    }
    Ok(Unwrapped { value: objects, next })
}

fn unwrap_envelope<T: DeserializeOwned>(
    body: &[u8],
    key: &'static str,
) -> Result<Unwrapped<T>, serde_json::Error> {
    if key.is_empty() {
        return Ok(Unwrapped { value: serde_json::from_slice(body)?, next: None });
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let opened = Envelope { key, value: PhantomData }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(opened)
}

#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    rel: String,
    #[serde(default)]
    href: String,
}

struct Envelope<T> {
    key: &'static str,
    value: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Envelope<T> {
    type Value = Unwrapped<T>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Envelope<T> {
    type Value = Unwrapped<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with `{}`", self.key)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let links = format!("{}_links", self.key);
        let mut value = None;
        let mut next = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.key {
                value = Some(map.next_value()?);
            } else if key == links {
                let links: Option<Vec<Link>> = map.next_value()?;
                next = links
                    .into_iter()
                    .flatten()
                    .find(|link| link.rel == "next")
                    .map(|link| link.href);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        let value = value.ok_or_else(|| de::Error::missing_field(self.key))?;
        Ok(Unwrapped { value, next })
    }
}

/// A body to send, in its envelope; without a key, as it is.
pub(super) struct Wrapped<'a, B> {
    pub key: &'static str,
    pub body: &'a B,
}

impl<B: Serialize> Serialize for Wrapped<'_, B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.key.is_empty() {
            return self.body.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(self.key, self.body)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(body: &str) -> Result<(Vec<u32>, Option<String>), String> {
        let list = unwrap_list::<u32>(body.as_bytes(), "ids").map_err(|error| error.to_string())?;
        let rows: Result<_, _> = list.value.into_iter().collect();
        rows.map(|rows| (rows, list.next))
            .map_err(|bad: BadRow| bad.error.to_string())
    }

    #[test]
    fn lists_come_with_the_link_to_the_next_page() {
        let link = r#"{"ids_links":[{"rel":"previous","href":"a"},{"rel":"next","href":"b"}],"x":{},"ids":[1,2]}"#;
        assert_eq!(ids(link), Ok((vec![1, 2], Some("b".to_owned()))));
        for last in
            [r#"{"ids":[]}"#, r#"{"ids":[],"ids_links":[]}"#, r#"{"ids":[],"ids_links":null}"#]
        {
            assert_eq!(ids(last), Ok((vec![], None)), "{last}");
        }
    }

    #[test]
    fn an_object_that_cannot_be_parsed_is_an_error_in_its_place() {
        let list = unwrap_list::<u32>(br#"{"ids":[1,"two",null,3]}"#, "ids")
            .unwrap()
            .value;
        assert_eq!(list.len(), 3, "null is none");
        assert!(matches!(&list[1], Err(bad) if bad.row == "two"), "{list:?}");
        assert!(matches!((&list[0], &list[2]), (Ok(1), Ok(3))), "{list:?}");
    }

    #[test]
    fn what_proves_nothing_is_an_error_and_no_empty_list() {
        let bodies = [
            "",
            "{}",
            "[]",
            r#"{"ids":null}"#,
            r#"{"others":[]}"#,
            r#"{"ids":[1,"#,
            r#"{"ids":[1]}}"#,
            "<html>",
        ];
        for body in bodies {
            assert!(ids(body).is_err(), "{body}");
        }
    }

    #[test]
    fn bodies_are_sent_in_their_envelope() {
        let text = |key| serde_json::to_string(&Wrapped { key, body: &[1] }).unwrap();
        assert_eq!((text("ids"), text("")), (r#"{"ids":[1]}"#.to_owned(), "[1]".to_owned()));
    }
}
