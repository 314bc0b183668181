//! What a chat request means to a model and what the model's text means to a client: wire dialects in, a rendered
//! prompt, the model's own tool-call and reasoning marks, wire dialects out. Pure: no tensors, no sockets, no clock.

mod dialect;
mod fields;
mod output;
mod request;
mod stop;
mod template;

pub(crate) use dialect::{Completed, CompletedChoice, ReplyMeta, ReplyStream, body, error_body, parse, usage_of_count};
pub(crate) use fields::RequestFault;
pub(crate) use output::{Delta, OutputParser, OutputStyle};
pub(crate) use request::{ChatRequest, Finish, OutputFormat, SamplingChoice, TokenLogprob, TokenUsage, ToolChoice};
pub(crate) use stop::{StopMatcher, Utf8Stream};
pub(crate) use template::ChatTemplate;
