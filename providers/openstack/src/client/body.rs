//! Bodies: the object or the list in its envelope, and the link to the next page.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap as _,
};
use serde_json::Value;

use crate::api::remove_nulls;

/// A body with the requested value under a key, and `<key>_links` beside it.
#[derive(Debug)]
pub(super) struct Unwrapped<T> {
    pub value: T,
    /// The link to the next page.
    pub next: Option<String>,
}

/// A field that every object of an answer must have, although its type could do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequiredField {
    pub name: &'static str,
    /// True if null is a value of the field, and not as good as absent.
    pub may_be_null: bool,
}

/// Parses a body with one object. Without a key the whole body is the object.
///
/// # Errors
/// It is not JSON, was cut short, lacks the key, or has something else under it; or the object lacks
/// the required field.
pub(super) fn unwrap_object<T: DeserializeOwned>(
    body: &[u8],
    key: &'static str,
    required: Option<RequiredField>,
) -> Result<T, serde_json::Error> {
    parse(&mut unwrap_envelope(body, key)?.value, required)
}

/// Parses an object, and removes its nulls. A null in place of an object is an error: something is
/// there, and nothing is known about it.
fn parse<T: DeserializeOwned>(
    object: &mut Value,
    required: Option<RequiredField>,
) -> Result<T, serde_json::Error> {
    if object.is_null() {
        return Err(de::Error::custom("null in place of an object"));
    }
    if let Some(RequiredField { name, may_be_null }) = required
        && object
            .get(name)
            .is_none_or(|field| field.is_null() && !may_be_null)
    {
        return Err(de::Error::missing_field(name));
    }
    remove_nulls(object);
    T::deserialize(&*object)
}

/// A row that cannot be parsed, and why.
#[derive(Debug)]
pub(super) struct BadRow {
    pub row: Value,
    pub error: serde_json::Error,
}

/// Parses a body with a list of objects.
///
/// # Errors
/// As for one object. An object that cannot be parsed is an error in its place, and so is a null: it
/// must not look deleted.
pub(super) fn unwrap_list<T: DeserializeOwned>(
    body: &[u8],
    key: &'static str,
    required: Option<RequiredField>,
) -> Result<Unwrapped<Vec<Result<T, BadRow>>>, serde_json::Error> {
    let Unwrapped { value, next } = unwrap_envelope::<Vec<Value>>(body, key)?;
    let mut objects = Vec::with_capacity(value.len());
    for mut row in value {
        objects.push(match parse(&mut row, required) {
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
        let list =
            unwrap_list::<u32>(body.as_bytes(), "ids", None).map_err(|error| error.to_string())?;
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
        let list = unwrap_list::<u32>(br#"{"ids":[1,"two",null,3]}"#, "ids", None)
            .unwrap()
            .value;
        assert_eq!(list.len(), 4, "{list:?}");
        assert!(matches!(&list[1], Err(bad) if bad.row == "two"), "{list:?}");
        assert!(matches!(&list[2], Err(bad) if bad.row.is_null()), "{list:?}");
        assert!(matches!((&list[0], &list[3]), (Ok(1), Ok(3))), "{list:?}");
        // Not even if everything can be read.
        let list = unwrap_list::<Value>(br#"{"ids":[null]}"#, "ids", None).unwrap();
        assert!(list.value[0].is_err());
    }

    #[test]
    fn an_object_without_a_required_field_cannot_be_parsed() {
        let body = br#"{"ids":[{"tags":[]},{"tags":null},{}]}"#;
        for (may_be_null, expected) in [(false, [true, false, false]), (true, [true, true, false])]
        {
            let required = Some(RequiredField { name: "tags", may_be_null });
            let list = unwrap_list::<Value>(body, "ids", required).unwrap();
            let is_read: Vec<bool> = list.value.iter().map(Result::is_ok).collect();
            assert_eq!(is_read, expected);
        }
        let required = Some(RequiredField { name: "tags", may_be_null: false });
        assert!(unwrap_object::<Value>(br#"{"id":{"tags":[]}}"#, "id", required).is_ok());
        assert!(unwrap_object::<Value>(br#"{"id":{}}"#, "id", required).is_err());
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
