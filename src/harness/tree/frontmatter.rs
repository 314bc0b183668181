//! The YAML block at the head of a `SKILL.md` or a prompt.

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value};

use super::refusal::{Refusal, Rule};

const DEEPEST: usize = 16;

/// The fields of a text's frontmatter, and the text after it.
type Parts<'a> = (Map<String, Value>, &'a str);

/// A text's frontmatter and the rest; `None` for a text without one.
pub(super) fn split(text: &str) -> Result<Option<Parts<'_>>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else {
        return Ok(None);
    };
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Ok(Some((fields(&rest[..at])?, &rest[at + line.len()..])));
        }
        at += line.len();
    }
    Err("the frontmatter that begins with --- has no --- that ends it".to_owned())
}

/// Holds a `SKILL.md` to the Agent Skills format: without a description agents pass a skill over silently.
pub(super) fn check_skill(name: &str, text: &str) -> Result<(), Refusal> {
    let bad = |reason: String| Err(Refusal::new(Rule::Shape, format!("SKILL.md: {reason}")));
    let (fields, body) = match split(text) {
        Ok(Some(found)) => found,
        Ok(None) => {
            return bad(format!(
                "begins with no frontmatter; write ---, name: {name}, description: …, --- first"
            ));
        }
        Err(reason) => return bad(reason),
    };
    let text_of = |key: &str| match fields.get(key) {
        Some(Value::String(text)) => Some(text.trim()),
        _ => None,
    };
    if text_of("name") != Some(name) {
        return bad(format!("the frontmatter must hold name: {name}, the name of the skill"));
    }
    match text_of("description").map(|text| text.chars().count()) {
        Some(1..=1024) => {}
        Some(0) | None => return bad("the frontmatter must hold a description".to_owned()),
        Some(long) => {
            return bad(format!(
                "the description has {long} characters; at most 1024 are allowed"
            ));
        }
    }
    let limits = [("license", 1024), ("compatibility", 500), ("allowed-tools", 4096)];
    for (key, most) in limits {
        match fields.get(key) {
            None => {}
            Some(Value::String(text)) if text.chars().count() <= most => {}
            Some(_) => return bad(format!("{key} must be a text of at most {most} characters")),
        }
    }
    if fields.get("metadata").is_some_and(|value| !value.is_object()) {
        return bad("metadata must be a map".to_owned());
    }
    if body.trim().is_empty() {
        return bad("there is nothing after the frontmatter".to_owned());
    }
    Ok(())
}

fn fields(yaml: &str) -> Result<Map<String, Value>, String> {
    let mut events = Parser::new_from_str(yaml);
    loop {
        match next(&mut events)? {
            Event::StreamEnd => return Ok(Map::new()),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
            event => {
                return match value(&mut events, event, 0)? {
                    Value::Object(fields) => Ok(fields),
                    Value::Null => Ok(Map::new()),
                    _ => Err("the frontmatter must be a map of fields".to_owned()),
                };
            }
        }
    }
}

fn next<'a>(events: &mut Parser<'a, StrInput<'a>>) -> Result<Event<'a>, String> {
    match events.next_event() {
        Some(Ok((event, _))) => Ok(event),
        Some(Err(error)) => Err(format!(
            "the frontmatter is not valid YAML (line {}): {}",
            error.marker().line(),
            error.info()
        )),
        None => Ok(Event::StreamEnd),
    }
}

fn value<'a>(events: &mut Parser<'a, StrInput<'a>>, event: Event<'a>, depth: usize) -> Result<Value, String> {
    if depth > DEEPEST {
        return Err(format!("the frontmatter is nested more than {DEEPEST} deep"));
    }
    match event {
        Event::Scalar(text, style, _, _) => Ok(match (style, text.as_ref()) {
            (ScalarStyle::Plain, "" | "~" | "null") => Value::Null,
            (ScalarStyle::Plain, "true") => Value::Bool(true),
            (ScalarStyle::Plain, "false") => Value::Bool(false),
            (_, text) => Value::String(text.to_owned()),
        }),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match next(events)? {
                    Event::SequenceEnd => return Ok(Value::Array(items)),
                    Event::StreamEnd => return Err("a list of the frontmatter does not end".to_owned()),
                    event => items.push(value(events, event, depth + 1)?),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut fields = Map::new();
            loop {
                let key = match next(events)? {
                    Event::MappingEnd => return Ok(Value::Object(fields)),
                    Event::Scalar(text, ..) => text.into_owned(),
                    _ => return Err("a key of the frontmatter must be a word".to_owned()),
                };
                let event = next(events)?;
                let value = value(events, event, depth + 1)?;
                if fields.insert(key.clone(), value).is_some() {
                    return Err(format!("the frontmatter gives {key:?} twice"));
                }
            }
        }
        // An alias could refer to what makes the text much larger than it looks; no frontmatter needs one.
        _ => Err("the frontmatter uses YAML that is not supported there".to_owned()),
    }
}

/// A frontmatter block of one-line fields, for files that need one.
pub(super) fn write(fields: &[(&str, &str)]) -> String {
    let mut text = String::from("---\n");
    for (key, value) in fields {
        // A JSON text is a YAML text.
        text.push_str(&format!("{key}: {}\n", Value::from(*value)));
    }
    text.push_str("---\n\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontmatter_is_split_from_what_follows() {
        let (fields, body) = split("---\nname: a\ndescription: >\n  two\n  lines\nmetadata: {x: [1, b]}\n---\nbody\n")
            .unwrap()
            .unwrap();
        assert_eq!(fields["description"], "two lines\n");
        assert_eq!(fields["metadata"]["x"][1], "b");
        assert_eq!(body, "body\n");
        assert!(split("no frontmatter\n---\n").unwrap().is_none());
        assert!(split("---\nname: a\n").is_err());
        assert!(split("---\na: 1\na: 2\n---\n").unwrap_err().contains("twice"));
        assert!(split("---\na: &x 1\nb: *x\n---\n").is_err());
        let (back, _) = split(&write(&[("name", "x"), ("description", "a \"b\": c\\")]))
            .map(|f| f.unwrap())
            .unwrap();
        assert_eq!(back["description"], "a \"b\": c\\");
    }

    #[test]
    fn a_skill_must_say_what_agents_need_to_find_it() {
        check_skill("tidy", "---\nname: tidy\ndescription: Tidies.\n---\nDo it.\n").unwrap();
        for (text, part) in [
            ("Do it.", "no frontmatter"),
            ("---\nname: other\ndescription: d\n---\nx", "name: tidy"),
            ("---\nname: tidy\n---\nx", "must hold a description"),
            ("---\nname: tidy\ndescription: ''\n---\nx", "must hold a description"),
            ("---\nname: tidy\ndescription: d\nmetadata: 3\n---\nx", "metadata"),
            ("---\nname: tidy\ndescription: d\n---\n \n", "nothing after"),
            ("---\nname: [\n---\nx", "not valid YAML"),
        ] {
            let error = check_skill("tidy", text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let long = format!("---\nname: tidy\ndescription: {}\n---\nx", "d".repeat(1025));
        assert!(check_skill("tidy", &long).unwrap_err().to_string().contains("1025"));
    }
}
