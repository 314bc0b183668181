//! Settings on the command line: `--section.key value`, `--section.key=value`, `--no-section.key`, bare
//! `--section.key` for a switch. They are taken out of the arguments before clap sees them, because their names come
//! from the schema and from recipes, not from the commands.

use std::ffi::OsString;

use super::{CliError, Exit};

/// One setting as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Override {
    /// The dotted key, as typed.
    pub(crate) key: String,
    /// The value as text; `None` for a bare switch.
    pub(crate) value: Option<String>,
    /// Typed as `--no-…`.
    pub(crate) negated: bool,
}

/// Separates settings from arguments. A word after `--section.key` is its value unless it starts with `--`.
pub(crate) fn split(argv: Vec<OsString>) -> Result<(Vec<OsString>, Vec<Override>), CliError> {
    let (mut rest, mut overrides) = (Vec::with_capacity(argv.len()), Vec::new());
    let mut words = argv.into_iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            rest.push(word);
            rest.extend(words);
            break;
        }
        let Some(flag) = word
            .to_str()
            .and_then(|text| text.strip_prefix("--"))
            .filter(|text| is_dotted(text))
        else {
            rest.push(word);
            continue;
        };
        let (name, mut value) = match flag.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (flag.to_owned(), None),
        };
        let (key, negated) = match name.strip_prefix("no-") {
            Some(key) => (key.to_owned(), true),
            None => (name, false),
        };
        if negated && value.is_some() {
            return Err(
                CliError::new(Exit::Usage, format!("--no-{key} takes no value")).hint(format!(
                    "write --{key} VALUE to set it, or --no-{key} alone to turn it off"
                )),
            );
        }
        if !negated && value.is_none() {
            let next_is_value = words
                .peek()
                .is_some_and(|next| !next.to_str().is_some_and(|text| text.starts_with("--")));
            if next_is_value && let Some(next) = words.next() {
                value = Some(
                    next.into_string()
                        .map_err(|_| CliError::new(Exit::Usage, format!("the value of --{key} is not valid UTF-8")))?,
                );
            }
        }
        overrides.push(Override { key, value, negated });
    }
    Ok((rest, overrides))
}

/// `section.key`, with at least one dot in the name before any `=`.
fn is_dotted(flag: &str) -> bool {
    let name = flag.split('=').next().unwrap_or(flag);
    let mut parts = name.split('.');
    let first = parts.next().unwrap_or("");
    name.contains('.')
        && !first.is_empty()
        && first
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn set(key: &str, value: &str) -> Override {
        Override {
            key: key.into(),
            value: Some(value.into()),
            negated: false,
        }
    }

    #[test]
    fn settings_are_taken_out_in_every_spelling() {
        let (rest, got) = split(words(
            "reef serve -c a.toml --reef.port 0 --storage.dir=/x --no-training.enabled --recipe.config.a.b -3 --json",
        ))
        .unwrap();
        assert_eq!(rest, words("reef serve -c a.toml --json"));
        let off = Override {
            key: "training.enabled".into(),
            value: None,
            negated: true,
        };
        assert_eq!(
            got,
            [
                set("reef.port", "0"),
                set("storage.dir", "/x"),
                off,
                set("recipe.config.a.b", "-3")
            ]
        );
    }

    #[test]
    fn a_switch_needs_no_value_and_other_flags_stay() {
        let (rest, got) = split(words("reef serve --reef.on --json --url http://a.b/c -- --x.y 1")).unwrap();
        assert_eq!(rest, words("reef serve --json --url http://a.b/c -- --x.y 1"));
        assert_eq!(
            got,
            [Override {
                key: "reef.on".into(),
                value: None,
                negated: false
            }]
        );
    }

    #[test]
    fn a_negation_with_a_value_is_refused() {
        let error = split(words("reef serve --no-reef.on=true")).unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
    }
}
