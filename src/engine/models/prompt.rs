//! What a model's folder says about prompts: its chat template and the special tokens that may stand in it.

use std::path::Path;

use serde_json::{Map, Value};

use super::error::ModelError;
use super::file;

const MAX_TEMPLATE_BYTES: u64 = 4 << 20;

/// The special tokens a chat template may name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Beginning of a sequence.
    pub bos: Option<String>,
    /// End of a sequence.
    pub eos: Option<String>,
    /// Padding.
    pub pad: Option<String>,
    /// Unknown text.
    pub unk: Option<String>,
}

impl SpecialTokens {
    fn of(value: &Value) -> Self {
        let token = |key: &str| {
            let entry = value.get(key)?;
            let text = entry.as_str().or_else(|| entry.get("content")?.as_str());
            text.map(str::to_owned)
        };
        Self {
            bos: token("bos_token"),
            eos: token("eos_token"),
            pad: token("pad_token"),
            unk: token("unk_token"),
        }
    }

    /// By the names that templates know.
    pub(crate) fn by_name(&self) -> Map<String, Value> {
        [
            ("bos_token", &self.bos),
            ("eos_token", &self.eos),
            ("pad_token", &self.pad),
            ("unk_token", &self.unk),
        ]
        .into_iter()
        .filter_map(|(name, token)| Some((name.to_owned(), Value::from(token.as_deref()?))))
        .collect()
    }
}

/// The source of the chat template, if there is one, and the special tokens.
pub(crate) fn read(dir: &Path) -> Result<(Option<String>, SpecialTokens), ModelError> {
    let settings = file::read_optional_json(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let mut special = SpecialTokens::of(&settings);
    if let Some(more) = file::read_optional_json(&dir.join("special_tokens_map.json"))? {
        let more = SpecialTokens::of(&more);
        special = SpecialTokens {
            bos: special.bos.or(more.bos),
            eos: special.eos.or(more.eos),
            pad: special.pad.or(more.pad),
            unk: special.unk.or(more.unk),
        };
    }
    Ok((template(dir, &settings)?, special))
}

fn template(dir: &Path, settings: &Value) -> Result<Option<String>, ModelError> {
    let path = dir.join("chat_template.jinja");
    if path.is_file() {
        return file::read_text(&path, MAX_TEMPLATE_BYTES).map(Some);
    }
    Ok(match settings.get("chat_template") {
        Some(Value::String(text)) => Some(text.clone()),
        // Several named templates: the one called default.
        Some(Value::Array(list)) => list
            .iter()
            .find(|t| t.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|t| t.get("template")?.as_str().map(str::to_owned)),
        _ => None,
    })
}
