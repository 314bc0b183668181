//! Chat templates, rendered as `transformers` renders them: Jinja2 with trimmed blocks, Python's string methods,
//! `raise_exception`, `strftime_now`, and JSON as Python writes it.

mod python_json;
mod strftime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, State};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

const NAME: &str = "chat";

/// A chat template that cannot be used, or that refuses what it is given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    /// The source does not parse.
    #[error("the chat template does not parse")]
    Syntax {
        #[source]
        source: Error,
    },
    /// The template called `raise_exception`: the messages break one of its rules.
    #[error("{message}")]
    Refused { message: String },
    /// It failed while rendering.
    #[error("the chat template failed")]
    Render {
        #[source]
        source: Error,
    },
}

/// A parsed chat template with the variables that every rendering gets.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    constants: Map<String, Json>,
    source: String,
}

impl ChatTemplate {
    /// Parses `source`. `constants` are the special tokens by their names (`bos_token`, `eos_token`, …).
    pub(crate) fn new(source: &str, constants: Map<String, Json>) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|source| TemplateError::Syntax { source })?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(python_method);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
        });
        environment.add_function("strftime_now", |format: &str| -> String {
            strftime::format(format, OffsetDateTime::now_utc())
        });
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, plain_generation_marks(source))
            .map_err(|source| TemplateError::Syntax { source })?;
        Ok(Self {
            environment,
            constants,
            source: source.to_owned(),
        })
    }

    /// The source, for those who look for marks in it.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template does anything with tools.
    pub(crate) fn knows_tools(&self) -> bool {
        self.source.contains("tools")
    }

    /// The prompt for `messages`. Without tools the template sees `tools` as none, as `transformers` passes it.
    pub(crate) fn render(
        &self,
        messages: &[Json],
        tools: &[Json],
        add_generation_prompt: bool,
        variables: &Map<String, Json>,
    ) -> Result<String, TemplateError> {
        let mut context = self.constants.clone();
        context.extend(variables.clone());
        let tools = if tools.is_empty() {
            Json::Null
        } else {
            Json::Array(tools.to_vec())
        };
        context.insert("messages".to_owned(), Json::Array(messages.to_vec()));
        context.insert("tools".to_owned(), tools);
        context.entry("documents").or_insert(Json::Null);
        context.insert("add_generation_prompt".to_owned(), Json::Bool(add_generation_prompt));
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(Value::from(Serde(Json::Object(context)))))
            .map_err(classify)
    }
}

/// What a template said through `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn classify(error: Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return TemplateError::Refused {
                message: message.clone(),
            };
        }
        cause = current.source();
    }
    TemplateError::Render { source: error }
}

/// `{% generation %}` marks the assistant's part for training masks and renders as nothing; an `if true` does the same.
fn plain_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match replacement {
            Some(new) => {
                out.push_str("{%");
                out.push_str(&inner.replacen(word, new, 1));
                out.push_str("%}");
            }
            None => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

/// Python's methods of strings, lists and dictionaries. `title` is our own: Python begins a word at any cased letter.
fn python_method(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "title"
        && args.is_empty()
        && let Some(text) = value.as_str()
    {
        return Ok(Value::from(python_title(text)));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn python_title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_lowercase() || c.is_uppercase();
    }
    out
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of a filter")]
fn to_json(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let style = python_json::Style {
        indent: kwargs
            .get::<Option<Value>>("indent")?
            .filter(|value| !value.is_none())
            .map(usize::try_from)
            .transpose()?,
        ascii_only: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: kwargs.get::<Option<Vec<String>>>("separators")?,
    };
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            "an undefined value has no JSON form",
        ));
    }
    let json = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, "no JSON form").with_source(error))?;
    Ok(Value::from(python_json::write(&json, &style)))
}

#[cfg(test)]
mod tests;
