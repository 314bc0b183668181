//! From a request's body to something the engine thread can generate: dialect, template, tokens, limits, constraint.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::constraint::{Constraint, Constraints, call_schema};
use super::handle::TorchHandle;
use super::sampler::Sampling;
use super::sequence::Goal;
use super::vocabulary::Vocabulary;
use crate::domain::Route;
use crate::engine::chat::{
    ChatRequest, ChatTemplate, OutputFormat, OutputParser, OutputStyle, RequestFault, SamplingChoice, ToolChoice, parse,
};
use crate::engine::torch::model::GenerationDefaults;
use crate::engine::torch::{SamplingDefaults, ToolCallFormat, TorchError};

/// A template takes milliseconds, and its instructions are counted; one that takes longer has found what is not.
const OVERDUE: Duration = Duration::from_secs(20);

/// Prompts being made, by when that began.
#[derive(Debug, Default)]
struct Rendering(Mutex<(u64, HashMap<u64, Instant>)>);

/// One of them.
struct Begun<'a>(&'a Rendering, u64);

impl Rendering {
    fn begin(&self) -> Begun<'_> {
        let mut state = self.0.lock();
        state.0 += 1;
        let id = state.0;
        state.1.insert(id, Instant::now());
        Begun(self, id)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.0.lock().1.remove(&self.1);
    }
}

/// What requests are prepared with.
pub(crate) struct Preparer {
    rendering: Rendering,
    template: ChatTemplate,
    style: OutputStyle,
    vocabulary: Arc<Vocabulary>,
    constraints: Result<Constraints, String>,
    defaults: SamplingDefaults,
    max_context: usize,
    capture_top: usize,
}

/// A request that can be submitted.
pub(crate) struct Prepared {
    pub(crate) request: ChatRequest,
    pub(crate) goal: Goal,
    pub(crate) constraint: Option<Constraint>,
    style: OutputStyle,
    tools: Vec<String>,
    prompt: String,
    forced_call: bool,
}

impl Prepared {
    /// A reader for one of its answers.
    pub(crate) fn parser(&self) -> OutputParser {
        OutputParser::new(self.style, self.tools.clone(), &self.prompt, self.forced_call)
    }
}

impl Preparer {
    pub(crate) fn new(handle: &TorchHandle) -> Result<Self, TorchError> {
        let vocabulary = handle.vocabulary();
        let options = handle.options();
        let tokenizer = vocabulary.tokenizer();
        let dir = || options.model_dir.clone();
        let source = tokenizer
            .chat_template()
            .ok_or_else(|| TorchError::NoChatTemplate { dir: dir() })?;
        let template = ChatTemplate::new(source, tokenizer.special_tokens().by_name()).map_err(|error| {
            let reason = error.describe();
            TorchError::ChatTemplate { dir: dir(), reason }
        })?;
        let style = OutputStyle::of_template(template.source());
        Ok(Self {
            rendering: Rendering::default(),
            style: match options.tool_calls {
                None => style,
                Some(ToolCallFormat::Hermes) => style.with_marked_calls(),
                Some(ToolCallFormat::Llama3Json) => style.with_bare_calls(),
            },
            template,
            constraints: Constraints::new(vocabulary),
            defaults: defaults(&options.sampling, tokenizer.generation()),
            vocabulary: Arc::clone(vocabulary),
            max_context: handle.max_context(),
            capture_top: options.capture_top_k,
        })
    }

    /// Whether a prompt is overdue. As long as that one holds a core, no other request is given one by this template.
    pub(crate) fn overdue(&self) -> Option<RequestFault> {
        let overdue = self
            .rendering
            .0
            .lock()
            .1
            .values()
            .any(|begun| begun.elapsed() > OVERDUE);
        overdue.then(|| RequestFault::BadTemplate {
            reason: format!("a prompt takes it longer than {} s", OVERDUE.as_secs()),
        })
    }

    /// The number of tokens of a request's prompt.
    pub(crate) fn count(&self, route: Route, body: &[u8]) -> Result<usize, RequestFault> {
        let request = parse(route, body)?;
        let prompt = self.render(&request)?;
        Ok(self.encode(&prompt)?.len())
    }

    /// Prepares a request; `seed` is used if it names none.
    pub(crate) fn prepare(&self, route: Route, body: &[u8], seed: u64) -> Result<Prepared, RequestFault> {
        let request = parse(route, body)?;
        let mut prompt = self.render(&request)?;
        let forced = match &request.tool_choice {
            ToolChoice::Required => Some(None),
            ToolChoice::Named(name) => Some(Some(name.as_str())),
            ToolChoice::Auto | ToolChoice::None => None,
        };
        if forced.is_some() {
            prompt.push_str(self.style.call_prefix());
        }
        let schema = match (forced, &request.format) {
            (Some(name), _) => Some(("tools", call_schema(&request.tools, name, self.style.arguments_key()))),
            (None, OutputFormat::Text) => None,
            (None, OutputFormat::JsonObject) => Some(("response_format", json!({"type": "object"}))),
            (None, OutputFormat::JsonSchema(schema)) => Some(("response_format", schema.clone())),
        };
        let constraint = schema
            .map(|(param, schema)| {
                let constraints = self.constraints.as_ref().map_err(Clone::clone);
                constraints
                    .and_then(|constraints| constraints.json(&schema))
                    .map_err(|reason| RequestFault::Schema {
                        param: param.to_owned(),
                        reason,
                    })
            })
            .transpose()?;
        let tokens = self.encode(&prompt)?;
        let room = self.max_context.saturating_sub(tokens.len());
        if room == 0 || tokens.is_empty() {
            return Err(RequestFault::ContextLength {
                limit: self.max_context,
                prompt: tokens.len(),
            });
        }
        let tools = offered(&request);
        let mut stops = request.stop.clone();
        if forced.is_none() && !request.parallel_tool_calls && !tools.is_empty() {
            stops.extend(self.style.call_end().map(str::to_owned));
        }
        let goal = Goal {
            prompt: tokens.into(),
            sampling: self.sampling(&request.sampling, seed),
            n_client_stops: request.stop.len(),
            stops,
            max_new: request.max_tokens.unwrap_or(room).min(room),
            min_new: request.sampling.min_tokens.unwrap_or(0),
            ignore_end: request.sampling.ignore_eos,
            client_top: request.logprobs,
            capture_top: self.capture_top,
        };
        Ok(Prepared {
            goal,
            constraint,
            style: self.style,
            tools,
            prompt,
            forced_call: forced.is_some(),
            request,
        })
    }

    fn render(&self, request: &ChatRequest) -> Result<String, RequestFault> {
        let offered: &[Value] = match request.tool_choice {
            ToolChoice::None => &[],
            _ => &request.tools,
        };
        let described;
        let (messages, tools) = if offered.is_empty() || self.template.knows_tools() {
            (&request.messages, offered)
        } else {
            described = with_described_tools(&request.messages, offered);
            (&described, [].as_slice())
        };
        let _begun = self.rendering.begin();
        self.template
            .render(messages, tools, true, &request.template_variables)
            .map_err(|error| {
                let reason = error.describe();
                if error.is_the_templates() {
                    RequestFault::BadTemplate { reason }
                } else {
                    RequestFault::Template { reason }
                }
            })
    }

    fn encode(&self, prompt: &str) -> Result<Vec<u32>, RequestFault> {
        let tokenizer = self.vocabulary.tokenizer();
        tokenizer.encode(prompt, false).map_err(|error| RequestFault::Template {
            reason: error.to_string(),
        })
    }

    /// The client's sampling, then the model's own defaults, then plain sampling.
    fn sampling(&self, asked: &SamplingChoice, seed: u64) -> Sampling {
        let plain = Sampling::default();
        let defaults = &self.defaults;
        Sampling {
            temperature: asked.temperature.or(defaults.temperature).unwrap_or(plain.temperature),
            top_p: asked.top_p.or(defaults.top_p).unwrap_or(plain.top_p),
            top_k: asked.top_k.or(defaults.top_k).unwrap_or(plain.top_k),
            min_p: asked.min_p.or(defaults.min_p).unwrap_or(plain.min_p),
            repetition_penalty: asked
                .repetition_penalty
                .or(defaults.repetition_penalty)
                .unwrap_or(plain.repetition_penalty),
            presence_penalty: asked.presence_penalty.unwrap_or(plain.presence_penalty),
            frequency_penalty: asked.frequency_penalty.unwrap_or(plain.frequency_penalty),
            logit_bias: asked.logit_bias.clone(),
            seed: asked.seed.unwrap_or(seed),
        }
    }
}

/// The deployment's values, then those of the model's folder.
fn defaults(own: &SamplingDefaults, model: &GenerationDefaults) -> SamplingDefaults {
    let narrow = |value: Option<f64>| value.map(|value| value as f32);
    SamplingDefaults {
        temperature: own.temperature.or(narrow(model.temperature)),
        top_p: own.top_p.or(narrow(model.top_p)),
        top_k: own.top_k.or(model.top_k.and_then(|k| usize::try_from(k).ok())),
        min_p: own.min_p,
        repetition_penalty: own.repetition_penalty.or(narrow(model.repetition_penalty)),
    }
}

fn offered(request: &ChatRequest) -> Vec<String> {
    if request.tool_choice == ToolChoice::None {
        return Vec::new();
    }
    request
        .tools
        .iter()
        .filter_map(|tool| Some(tool.get("function")?.get("name")?.as_str()?.to_owned()))
        .collect()
}

/// For templates that know nothing of tools: the tools in the system message, and past calls and results as text.
fn with_described_tools(messages: &[Value], tools: &[Value]) -> Vec<Value> {
    let mut text = String::from(
        "You can call functions. To call one, write one line of JSON between <tool_call> and </tool_call>, like \
         <tool_call>{\"name\": \"function name\", \"arguments\": {}}</tool_call>, and nothing after it. The functions \
         are:\n",
    );
    for tool in tools {
        text.push_str(&tool["function"].to_string());
        text.push('\n');
    }
    let mut out = Vec::with_capacity(messages.len() + 1);
    let mut rest = messages;
    if let Some((first, others)) = messages.split_first()
        && first["role"] == "system"
    {
        text = format!("{}\n\n{text}", first["content"].as_str().unwrap_or_default());
        rest = others;
    }
    out.push(json!({"role": "system", "content": text}));
    for message in rest {
        let content = message["content"].as_str().unwrap_or_default();
        out.push(match message["tool_calls"].as_array() {
            Some(calls) => {
                let mut content = content.to_owned();
                for call in calls {
                    content.push_str(&format!("\n<tool_call>{}</tool_call>", call["function"]));
                }
                json!({"role": "assistant", "content": content.trim_start()})
            }
            None if message["role"] == "tool" => {
                json!({"role": "user", "content": format!("<tool_response>{content}</tool_response>")})
            }
            None => message.clone(),
        });
    }
    out
}
