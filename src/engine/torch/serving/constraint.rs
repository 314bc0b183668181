//! Answers held to a JSON schema, by `llguidance`: before each token it says which tokens keep the answer valid.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::sampler::Allowed;
use super::vocabulary::Vocabulary;

/// Marks a special token's name in a token trie.
const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Compiles schemas for one vocabulary.
pub(crate) struct Constraints {
    factory: ParserFactory,
}

impl Constraints {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Result<Self, String> {
        let words: Vec<Vec<u8>> = (0..vocabulary.len())
            .map(|id| {
                let id = u32::try_from(id).unwrap_or(u32::MAX);
                let bytes = vocabulary.bytes(id);
                if vocabulary.is_control(id) {
                    let mut word = vec![SPECIAL];
                    word.extend_from_slice(bytes);
                    word
                } else {
                    bytes.to_vec()
                }
            })
            .collect();
        let size = u32::try_from(words.len()).map_err(|_| "the vocabulary is too large".to_owned())?;
        let end = vocabulary
            .ends_of_sequence()
            .iter()
            .copied()
            .find(|id| *id < size)
            .ok_or_else(|| "the model names no end-of-sequence token".to_owned())?;
        let trie = TokTrie::from(&TokRxInfo::new(size, end), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self { factory })
    }

    /// A constraint to JSON that `schema` accepts, written with one space after commas and colons.
    pub(crate) fn json(&self, schema: &Value) -> Result<Constraint, String> {
        let schema = match schema {
            Value::Object(map) => {
                let mut map = map.clone();
                map.entry("x-guidance").or_insert_with(
                    || json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}),
                );
                Value::Object(map)
            }
            other => other.clone(),
        };
        let parser = self.factory.create_parser(TopLevelGrammar::from_json_schema(schema));
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            Some(error) => Err(first_line(&error)),
            None => Ok(Constraint { matcher }),
        }
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}

/// The state of one constrained answer.
#[derive(Clone)]
pub(crate) struct Constraint {
    matcher: Matcher,
}

impl Constraint {
    /// The tokens that may come next.
    pub(crate) fn mask(&mut self) -> Result<Mask, String> {
        self.matcher
            .compute_mask_or_eos()
            .map(Mask)
            .map_err(|error| first_line(&error.to_string()))
    }

    /// This token came. True when the answer is complete and nothing may follow.
    pub(crate) fn accept(&mut self, token: u32) -> Result<bool, String> {
        self.matcher
            .consume_token(token)
            .map_err(|error| first_line(&error.to_string()))?;
        Ok(self.matcher.is_stopped())
    }
}

/// A set of tokens.
pub(crate) struct Mask(SimpleVob);

impl Allowed for Mask {
    fn allows(&self, token: u32) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }
}

/// The schema of a forced call: one of these tools, with arguments its own schema accepts.
pub(crate) fn call_schema(tools: &[Value], name: Option<&str>, arguments_key: &str) -> Value {
    let calls: Vec<Value> = tools
        .iter()
        .filter_map(|tool| tool.get("function"))
        .filter(|function| name.is_none_or(|name| function["name"] == name))
        .map(|function| {
            let mut parameters = function["parameters"].clone();
            // A definition's references are relative to the schema they stand in.
            let definitions = parameters.get("$defs").cloned();
            if let (Some(map), Some(_)) = (parameters.as_object_mut(), &definitions) {
                map.remove("$defs");
            }
            let mut call = json!({
                "type": "object",
                "properties": {"name": {"const": function["name"]}, arguments_key: parameters},
                "required": ["name", arguments_key],
                "additionalProperties": false,
            });
            if let Some(definitions) = definitions {
                call["$defs"] = definitions;
            }
            call
        })
        .collect();
    match calls.as_slice() {
        [only] => only.clone(),
        _ => json!({"anyOf": calls}),
    }
}
