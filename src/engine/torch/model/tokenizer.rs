//! Text to token ids and back, and what the model's folder says about prompts and generation.

use std::path::Path;

use serde_json::Value;

use crate::engine::models::{ModelConfig, ModelError, SpecialTokens, file, prompt_files, token_ids};
use crate::sys::task;

const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// No character needs more bytes, and no tokenizer spreads one character over more tokens.
const MAX_PENDING: usize = 8;
/// Bytes of the longest character in UTF-8, so tokens of the longest that is still incomplete.
const MAX_CHARACTER_BYTES: usize = 4;

/// A tokenizer with the model's template and generation defaults. Shared freely between threads.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    chat_template: Option<String>,
    generation: GenerationDefaults,
    special: SpecialTokens,
}

/// generation_config.json, with the end tokens of config.json added.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens that end a generation.
    pub eos_token_ids: Vec<u32>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus.
    pub top_p: Option<f64>,
    /// Most likely tokens kept.
    pub top_k: Option<u64>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f64>,
}

impl Tokenizer {
    /// Reads tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json of a folder.
    pub fn load(dir: &Path, config: &ModelConfig) -> Result<Self, ModelError> {
        let path = dir.join("tokenizer.json");
        let bytes = file::read_bounded(&path, MAX_TOKENIZER_BYTES)?;
        let inner = parse(&bytes).map_err(|reason| ModelError::malformed(&path, reason))?;
        let generation = file::read_optional_json(&dir.join("generation_config.json"))?.unwrap_or_default();
        let (chat_template, special) = prompt_files(dir)?;
        let mut defaults = generation_defaults(&generation);
        if defaults.eos_token_ids.is_empty() {
            defaults.eos_token_ids.clone_from(&config.eos_token_ids);
        }
        let named_eos = special.eos.as_deref().and_then(|t| inner.token_to_id(t));
        if let Some(id) = named_eos.filter(|id| !defaults.eos_token_ids.contains(id)) {
            defaults.eos_token_ids.push(id);
        }
        Ok(Self {
            inner,
            chat_template,
            generation: defaults,
            special,
        })
    }

    /// Ids of a text. Special tokens written out in it are recognised; none is added unless `add_special`.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ModelError> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of ids. Bytes that form no character become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, ModelError> {
        self.inner.decode(ids, skip_special).map_err(failed)
    }

    /// The id of one token as written in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as written in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether a token is special: control rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .get(&id)
            .is_some_and(|t| t.special)
    }

    /// Tokens known, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The chat template's source.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The special tokens a template may name.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// End tokens and sampling defaults.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// Starts decoding a generation token by token.
    pub fn stream(&self, skip_special: bool) -> TextStream {
        TextStream {
            skip_special,
            context: Vec::new(),
            pending: Vec::new(),
        }
    }
}

/// The text of a growing list of tokens, in whole characters. Holds only the tokens it still needs.
#[derive(Debug, Clone)]
pub struct TextStream {
    skip_special: bool,
    /// Tokens whose text is out; they decide how the next one joins (a leading space may depend on it).
    context: Vec<u32>,
    /// Tokens whose text is not out yet.
    pending: Vec<u32>,
}

impl TextStream {
    /// Takes one more token and returns the text that is certain now: empty while a character is incomplete.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, ModelError> {
        self.pending.push(id);
        let text = self.text(tokenizer, &self.context, &self.pending)?;
        if text.ends_with('\u{FFFD}') {
            if self.pending.len() < MAX_PENDING {
                return Ok(String::new());
            }
            if let Some((cut, certain)) = self.boundary(tokenizer, &text)? {
                let rest = self.pending.split_off(cut);
                self.context = std::mem::replace(&mut self.pending, rest);
                return Ok(certain);
            }
        }
        self.context = std::mem::take(&mut self.pending);
        Ok(text)
    }

    /// The rest at the end of a generation; an incomplete character comes out as U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, ModelError> {
        let text = if self.pending.is_empty() {
            String::new()
        } else {
            self.text(tokenizer, &self.context, &self.pending)?
        };
        self.pending.clear();
        Ok(text)
    }

    /// The last place among the pending tokens where no character is cut in two, and the text before it. A run of
    /// U+FFFD may be written out in the text or stand for bytes that still wait for the rest of their character;
    /// only the latter change when the run is cut inside a character.
    fn boundary(&self, tokenizer: &Tokenizer, whole: &str) -> Result<Option<(usize, String)>, ModelError> {
        for cut in (1..self.pending.len()).rev().take(MAX_CHARACTER_BYTES) {
            let (head, tail) = self.pending.split_at(cut);
            let text = self.text(tokenizer, &self.context, head)?;
            // Alone, for a context that ends within a character would swallow its rest. A space in front depends on it.
            let alone = tokenizer.decode(tail, self.skip_special)?;
            let rest = whole.strip_prefix(&text).map(str::trim_start);
            if rest.is_some_and(|rest| !rest.is_empty() && rest == alone.trim_start()) {
                return Ok(Some((cut, text)));
            }
        }
        Ok(None)
    }

    /// What `tokens` add to the text of `context`.
    fn text(&self, tokenizer: &Tokenizer, context: &[u32], tokens: &[u32]) -> Result<String, ModelError> {
        let before = tokenizer.decode(context, self.skip_special)?;
        let all: Vec<u32> = context.iter().chain(tokens).copied().collect();
        let after = tokenizer.decode(&all, self.skip_special)?;
        match after.strip_prefix(&before) {
            Some(more) => Ok(more.to_owned()),
            // Bytes joined a run that was whole without them and made it broken. What is out stays out.
            None => tokenizer.decode(tokens, self.skip_special),
        }
    }
}

/// Parses on a guarded stack frame: the library asserts on some damaged files instead of returning an error.
fn parse(bytes: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    match task::foreign(|| tokenizers::Tokenizer::from_bytes(bytes)) {
        Ok(Ok(mut tokenizer)) => {
            // Limits and padding belong to the caller; a file that sets them would cut prompts silently.
            tokenizer.with_padding(None);
            tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
            Ok(tokenizer)
        }
        Ok(Err(error)) => Err(format!("not a tokenizer: {error}")),
        Err(_) => Err("not a tokenizer: it contradicts itself".to_owned()),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
fn failed(error: tokenizers::Error) -> ModelError {
    ModelError::Tokenizer {
        reason: error.to_string(),
    }
}

fn generation_defaults(value: &Value) -> GenerationDefaults {
    let number = |key: &str| value.get(key).and_then(Value::as_f64).filter(|n| n.is_finite());
    GenerationDefaults {
        eos_token_ids: token_ids(value.get("eos_token_id")),
        temperature: number("temperature"),
        top_p: number("top_p"),
        top_k: value.get("top_k").and_then(Value::as_u64),
        repetition_penalty: number("repetition_penalty"),
    }
}
