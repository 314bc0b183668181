//! Which records a person looks for: by score, tag, time and text.

use rusqlite::types::Value as SqlValue;
use serde_json::Value;

use super::records::Record;

/// What a record must have. Everything that is given has to hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordFilter {
    /// A report with at least this score, or an exchange with such a report on it.
    pub min_score: Option<f64>,
    /// The same with at most this score; together with the other, one report must satisfy both.
    pub max_score: Option<f64>,
    /// Tags, each with its value or with any.
    pub tags: Vec<(String, Option<String>)>,
    /// Not before, microseconds since the Unix epoch.
    pub since_us: Option<i64>,
    /// Before, microseconds since the Unix epoch.
    pub until_us: Option<i64>,
    /// Texts that must all be there, in any case. A record whose bodies were dropped holds none.
    pub texts: Vec<String>,
}

impl RecordFilter {
    /// What SQL decides of it, for a record `r`; parameters are numbered from `from` on.
    pub(super) fn sql(&self, from: usize) -> (String, Vec<SqlValue>) {
        let (mut sql, mut values) = (String::new(), Vec::new());
        let mut place = |value: SqlValue| {
            values.push(value);
            format!("?{}", from + values.len() - 1)
        };
        if let Some(since) = self.since_us {
            sql.push_str(&format!(" AND r.created_us >= {}", place(since.into())));
        }
        if let Some(until) = self.until_us {
            sql.push_str(&format!(" AND r.created_us < {}", place(until.into())));
        }
        if self.min_score.is_some() || self.max_score.is_some() {
            let low = place(self.min_score.unwrap_or(f64::NEG_INFINITY).into());
            let high = place(self.max_score.unwrap_or(f64::INFINITY).into());
            sql.push_str(&format!(
                " AND (r.score BETWEEN {low} AND {high} OR EXISTS (SELECT 1 FROM reference graded
                   JOIN record report ON report.sequence = graded.report_sequence
                   WHERE graded.record_sequence = r.sequence AND report.score BETWEEN {low} AND {high}))"
            ));
        }
        for (name, value) in &self.tags {
            let name = place(name.clone().into());
            let value = match value {
                Some(value) => format!(" AND tag.value = {}", place(value.clone().into())),
                None => String::new(),
            };
            sql.push_str(&format!(
                " AND EXISTS (SELECT 1 FROM json_each(r.tags) tag WHERE tag.key = {name}{value})"
            ));
        }
        (sql, values)
    }

    /// Whether the bodies have to be read to decide.
    pub(super) fn reads_bodies(&self) -> bool {
        !self.texts.is_empty()
    }

    /// Whether a record holds the texts.
    pub(super) fn holds(&self, record: &Record) -> bool {
        let text = record.words().to_lowercase();
        self.texts.iter().all(|wanted| text.contains(&wanted.to_lowercase()))
    }
}

/// What a record says, in short.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gist {
    /// What was asked last: the last message of the user, or an instruction.
    pub asked: String,
    /// What was answered, or the words of a report.
    pub said: String,
}

impl Record {
    /// What it says, in short; empty without bodies.
    pub fn gist(&self) -> Gist {
        let Some(bodies) = &self.bodies else {
            return Gist::default();
        };
        let request: Value = serde_json::from_slice(&bodies.request).unwrap_or(Value::Null);
        let asked = [
            &request["messages"],
            &request["input"],
            &request["prompt"],
            &request["text"],
        ]
        .into_iter()
        .map(last_words)
        .find(|text| !text.is_empty())
        .unwrap_or_default();
        let said = match &bodies.turn {
            Some(turn) if !turn.text.is_empty() => turn.text.clone(),
            Some(turn) => {
                let calls: Vec<String> = turn
                    .tool_calls
                    .iter()
                    .map(|call| format!("{}({})", call.name, call.arguments))
                    .collect();
                calls.join(" ")
            }
            None => last_words(&request["feedback"]),
        };
        Gist { asked, said }
    }

    /// Every word of it, for a search.
    fn words(&self) -> String {
        let mut out = String::new();
        let Some(bodies) = &self.bodies else {
            return out;
        };
        let mut add = |bytes: &[u8]| match serde_json::from_slice::<Value>(bytes) {
            Ok(value) => strings(&value, &mut out),
            Err(_) => {
                out.push_str(&String::from_utf8_lossy(bytes));
                out.push('\n');
            }
        };
        add(&bodies.request);
        match &bodies.turn {
            Some(turn) => {
                for text in [&turn.text, &turn.reasoning] {
                    out.push_str(text);
                    out.push('\n');
                }
                for call in &turn.tool_calls {
                    out.push_str(&format!("{} {}\n", call.name, call.arguments));
                }
            }
            None => add(bodies.response.as_deref().unwrap_or_default()),
        }
        out
    }
}

/// The text of a message, of a list of parts, or of the last message of the user in a list of messages.
fn last_words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let of_user = items.iter().rev().find(|item| item["role"] == "user");
            match of_user {
                Some(message) => last_words(&message["content"]),
                None => {
                    let parts: Vec<&str> = items.iter().filter_map(|part| part["text"].as_str()).collect();
                    parts.join(" ")
                }
            }
        }
        Value::Object(_) => value.to_string(),
        _ => String::new(),
    }
}

/// The strings in a value, each on its line. Names of fields count as well: they are what a report's feedback is made of.
fn strings(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => {
            out.push_str(text);
            out.push('\n');
        }
        Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
        Value::Object(fields) => {
            for (name, value) in fields {
                out.push_str(name);
                out.push('\n');
                strings(value, out);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_words_of_the_user_are_found_in_every_dialect() {
        for (value, want) in [
            (
                json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
                "a",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]}]),
                "a b",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]),
                "x",
            ),
            (json!("plain"), "plain"),
            (json!(7), ""),
            (json!([{"role": "system", "content": "s"}]), ""),
        ] {
            assert_eq!(last_words(&value), want, "{value}");
        }
    }
}
