//! Lists that commands print: a table for people, JSON for programs.

use serde_json::{Map, Value};

use super::options::OutputOption;
use super::{output, table};

/// Prints a list on standard output: as a table, or as JSON.
///
/// # Errors
/// If it cannot be written.
pub fn list<const N: usize>(format: OutputOption, head: [&str; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    if format.is_json() {
        output::json(&objects(head, rows))
    } else {
        output::print(table(head, rows))
    }
}

/// Returns a list as JSON: an array with an object for each row. Its members are the columns, in lower case with `_` for spaces; a cell
/// with `-` or nothing is `null`.
#[must_use]
pub fn objects<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> Value {
    let keys = head.map(|column| column.to_lowercase().replace(' ', "_"));
    let cell = |text: &String| match text.as_str() {
        "" | "-" => Value::Null,
        text => Value::String(text.to_owned()),
    };
    let object = |row: &[String; N]| Value::Object(keys.iter().cloned().zip(row.iter().map(cell)).collect::<Map<_, _>>());
    Value::Array(rows.iter().map(object).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_row_has_the_columns_as_members() {
        let rows = [["a".to_owned(), "worker, infra".to_owned()], ["-".to_owned(), String::new()]];
        assert_eq!(
            objects(["NAME", "LAST POOLS"], &rows),
            json!([{"name": "a", "last_pools": "worker, infra"}, {"name": null, "last_pools": null}])
        );
        assert_eq!(objects(["NAME"], &[]), json!([]));
    }
}
