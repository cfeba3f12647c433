//! JSON that a person may have written.

use std::fmt;

use serde::de::DeserializeOwned;

/// What is wrong with a text: of a value that does not fit its field, such as `tensors[3].elements: `, too; and line and column.
#[derive(Debug, thiserror::Error)]
pub struct JsonError {
    field: Option<String>,
    reason: serde_json::Error,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.reason),
            None => self.reason.fmt(f),
        }
    }
}

/// Reads a text; one that is wrong twice, the second time to find the field.
///
/// # Errors
/// It is no JSON, or not of this form.
pub fn read_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, JsonError> {
    serde_json::from_slice(text).map_err(|reason| {
        let again = &mut serde_json::Deserializer::from_slice(text);
        let found = serde_path_to_error::deserialize::<_, T>(again).err();
        // The whole is called `.`.
        let field = found.map(|found| found.path().to_string()).filter(|field| reason.is_data() && field != ".");
        JsonError { field, reason }
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Tensor {
        elements: usize,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Model {
        tensors: Vec<Tensor>,
    }

    #[test]
    fn a_value_that_does_not_fit_is_told_with_its_field() {
        let refused = |text: &str| read_json::<Model>(text.as_bytes()).expect_err(text).to_string();
        let wrong = refused(r#"{"tensors":[{"elements":1},{"elements":"two"}]}"#);
        assert!(
            wrong.starts_with("tensors[1].elements: invalid type: string \"two\", expected usize at line 1"),
            "{wrong}"
        );
        assert!(refused(r#"{"tensors":[{}]}"#).starts_with("tensors[0]: missing field `elements`"));
        assert!(refused("[]").starts_with("missing field") || refused("[]").starts_with("invalid"));
        // Where the text itself is broken, line and column say it all.
        assert!(refused(r#"{"tensors":[{"elements":"#).starts_with("EOF while parsing"));
        assert!(refused(r#"{"tensors":[]} more"#).starts_with("trailing characters"));
        assert_eq!(
            read_json::<Model>(br#"{"tensors":[{"elements":3}]}"#).ok(),
            Some(Model { tensors: vec![Tensor { elements: 3 }] })
        );
    }
}
