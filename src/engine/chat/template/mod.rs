//! Chat templates, rendered as `transformers` renders them: Jinja2 with trimmed blocks, Python's string methods,
//! `raise_exception`, `strftime_now`, and JSON as Python writes it.

mod limits;
mod python_json;
mod strftime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, State};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use limits::Limits;

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
    /// It took more than any request can need: the fault is the template's.
    #[error("the chat template {reason}")]
    Excessive { reason: String },
}

impl TemplateError {
    /// With its cause, for whoever can act on it.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Refused { message } => message.clone(),
            Self::Excessive { .. } => self.to_string(),
            Self::Syntax { source } | Self::Render { source } => format!("{self}: {source}"),
        }
    }

    /// Whether it failed for what it is and not for what it was given: no other request would fare better.
    pub(crate) fn is_the_templates(&self) -> bool {
        match self {
            Self::Refused { .. } => false,
            Self::Syntax { .. } | Self::Excessive { .. } => true,
            Self::Render { source } => matches!(
                source.kind(),
                ErrorKind::UnknownFilter
                    | ErrorKind::UnknownFunction
                    | ErrorKind::UnknownTest
                    | ErrorKind::TemplateNotFound
                    | ErrorKind::SyntaxError
            ),
        }
    }
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
        if source.len() > limits::SOURCE {
            return Err(TemplateError::Excessive {
                reason: format!("has more than {} bytes", limits::SOURCE),
            });
        }
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
        let context = Json::Object(context);
        let limits = Limits::of(limits::size(&context));
        // Cheap: what an environment holds is shared.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(limits.instructions));
        let mut prompt = limits::Bounded::new(limits.prompt);
        let rendered = environment.get_template(NAME).and_then(|template| {
            template
                .render_captured_to(Value::from(Serde(context)), &mut prompt)
                .map(drop)
        });
        if prompt.over {
            return Err(TemplateError::Excessive {
                reason: format!("makes a prompt of more than {} bytes of this request", limits.prompt),
            });
        }
        rendered.map_err(|error| classify(error, limits))?;
        String::from_utf8(prompt.bytes).map_err(|error| TemplateError::Excessive {
            reason: format!("makes a prompt that is no text: {error}"),
        })
    }
}

/// What a template said through `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn classify(error: Error, limits: Limits) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::Excessive {
            reason: format!(
                "takes more than {} instructions, or strings as long, for this request",
                limits.instructions
            ),
        };
    }
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
    limits::pay_for(state, value)?;
    args.iter().try_for_each(|arg| limits::pay_for(state, arg))?;
    match (value.as_str(), method, args) {
        (Some(text), "title", []) => return Ok(Value::from(python_title(text))),
        (Some(text), "join", [items]) => return limits::join(state, text, items),
        (Some(text), "format", _) => limits::check_format(text)?,
        _ => {}
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
fn to_json(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
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
    style
        .check()
        .map_err(|fault| Error::new(ErrorKind::InvalidOperation, fault))?;
    // A list may be made while it is written, and longer than any memory.
    let mut written = limits::Bounded::new(limits::room(state) / python_json::COST);
    let json = serde_json::to_writer(&mut written, value).and_then(|()| serde_json::from_slice(&written.bytes));
    if written.over {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    let json: Json =
        json.map_err(|error| Error::new(ErrorKind::InvalidOperation, "no JSON form").with_source(error))?;
    limits::pay(state, written.bytes.len().saturating_mul(python_json::COST as usize))?;
    Ok(Value::from(python_json::write(&json, &style)))
}

#[cfg(test)]
mod tests;
