//! `inference`

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Secret, Size, Table, TableList, Url, choice, section};

choice! {
    /// What answers requests.
    pub EngineKind {
        /// A provider reached over HTTP.
        Upstream = "upstream",
        /// The embedded model.
        Torch = "torch",
    }
}

choice! {
    /// The API a provider speaks.
    pub UpstreamApi {
        /// OpenAI chat completions.
        Openai = "openai",
        /// OpenAI responses.
        Responses = "responses",
        /// Anthropic messages.
        Anthropic = "anthropic",
    }
}

choice! {
    /// Number format of the embedded model's weights.
    pub Precision {
        /// As the checkpoint has it.
        Auto = "auto",
        /// 32 bit.
        Float32 = "float32",
        /// 16 bit, brain float.
        Bfloat16 = "bfloat16",
    }
}

choice! {
    /// What answers in progress do when their scenario gets new weights.
    pub SwapPolicy {
        /// They finish on the weights they began with.
        Finish = "finish",
        /// They go on with the new weights from the next token; the record says which token came from which.
        Switch = "switch",
    }
}

choice! {
    /// How a model writes tool calls.
    pub ToolCallFormat {
        /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen, SmolLM.
        Hermes = "hermes",
        /// `{"name": …, "parameters": …}` as the whole answer: Llama 3.
        Llama3Json = "llama3_json",
    }
}

section! {
    /// What answers requests: a provider reached over HTTP, or the embedded model.
    pub Inference in "inference" {
        /// `upstream` or `torch` [default: `torch` with `inference.model-path`, else `upstream`].
        engine: Option<EngineKind>;

        /// Base URL of the provider, with or without `/v1`.
        upstream_url: Option<Url>, env "REEF_UPSTREAM_URL";
        /// The model requested when a request names none.
        upstream_model: Option<String>, env "REEF_UPSTREAM_MODEL";
        /// Request `inference.upstream-model` even when a request names another model.
        upstream_model_override: bool = false;
        /// Credential for the provider. Clients' own credentials are never forwarded.
        upstream_api_key: Option<Secret>, env "REEF_UPSTREAM_API_KEY";
        /// The API the provider speaks.
        upstream_api: UpstreamApi = "openai";
        /// Other providers, tried in this order while no byte of an answer was sent: a list of tables with `url`, `model`,
        /// `api-key` or `api-key-env`, and `api`.
        fallbacks: TableList = [];

        /// Base URL of an engine that you run yourself (vLLM, SGLang, llama.cpp): another name of
        /// `inference.upstream-url`. What it has loaded stays as it is.
        url: Option<Url>;

        /// Longest wait for an answer to begin.
        timeout_s: Duration = 300.0, min 0.001;
        /// Longest wait for a connection.
        connect_timeout_s: Duration = 10.0, min 0.001;
        /// Longest silence within an answer.
        idle_timeout_s: Duration = 300.0, min 0.001;
        /// Time for all attempts and the delays between them [default: `inference.timeout-s`].
        retry_timeout_s: Option<Duration>, min 0.0;
        /// Delay before the second attempt; it doubles after that.
        retry_initial_s: Duration = 0.05, min 0.001;
        /// Longest delay between attempts.
        retry_max_s: Duration = 1.0, min 0.001;
        /// Most attempts for one request before the first byte of an answer.
        retry_attempts: u32 = 3, min 1.0;
        /// Longest head of an answer, in header lines; a longer one is a failure of the provider.
        max_head_lines: u32 = 500, min 16.0, max 10000.0;
        /// Longest head of an answer; a larger one is a failure of the provider.
        max_head_size: Size = "256KiB", min 8192.0, max 16777216.0;
        /// Send a comment on a stream that was silent this long, so that proxies keep it open; 0 never does.
        keep_alive_s: Duration = 15.0, min 0.0;

        /// The embedded model: a directory in Hugging Face layout, or the name of a model that `reef model import` or
        /// `reef model pull` brought in (`Qwen/Qwen2.5-1.5B-Instruct` after
        /// `reef model pull hf://Qwen/Qwen2.5-1.5B-Instruct`). A GGUF file is imported first.
        model_path: Option<PathBuf>;
        /// The name the embedded model is listed under [default: the last part of its path].
        model_name: Option<String>;
        /// Number format of the weights; `auto` follows the checkpoint, and serves one of float16 as bfloat16.
        dtype: Precision = "auto";
        /// Where the embedded model computes: `cpu`, or `cuda:N` with a libtorch that has CUDA.
        device: String = "cpu";
        /// Threads for the embedded model [default: the number of cores].
        threads: Option<u32>, min 1.0;
        /// Most sequences decoded together.
        max_batch: u32 = 8, min 1.0;
        /// Most requests waiting for a place in the batch, half of them of one scenario; a further one gets 503.
        max_queue: u32 = 256, min 1.0;
        /// Longest wait for a place in the batch; after it a request gets 503.
        queue_timeout_s: Duration = 120.0, min 0.001;
        /// Longest sequence, prompt and answer together [default: as long as the model and `inference.cache-size` allow].
        context: Option<u32>, min 1.0;
        /// Memory for the key-value cache. It bounds `inference.context` times `inference.max-batch`.
        cache_size: Size = "1GiB";
        /// Memory for weights, cache and activations together; a model that needs more is refused before it is loaded
        /// [default: unbounded].
        memory: Option<Size>;
        /// Prompt tokens computed in one step while no answer is in progress; beside answers it is an eighth of that.
        prompt_chunk: u32 = 512, min 8.0;
        /// Adapters kept loaded beside the base model.
        max_adapters: u32 = 8, min 1.0;
        /// What answers in progress do when their scenario gets new weights.
        on_swap: SwapPolicy = "finish";
        /// Record this many of the most likely tokens at each position; 0 records none.
        capture_topk: u32 = 0, max 1024.0;
        /// Sampling values for requests that give none: `temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty`
        /// [default: as the model's generation_config.json has them].
        sampling_defaults: Table = {};
        /// The tool-call format of the model's answers [default: found from its chat template].
        tool_call_parser: Option<ToolCallFormat>;
    }
}

section! {
    /// One further provider.
    pub Fallback in "" {
        /// Base URL, with or without `/v1`.
        url: Option<Url>;
        /// The model requested when a request names none; see `model-override`.
        model: Option<String>;
        /// Request `model` even when a request names another.
        model_override: bool = false;
        /// Credential.
        api_key: Option<Secret>;
        /// The environment variable that holds the credential.
        api_key_env: Option<String>;
        /// The API it speaks.
        api: UpstreamApi = "openai";
    }
}

impl Inference {
    /// What answers.
    pub fn engine(&self) -> EngineKind {
        self.engine.unwrap_or(if self.model_path.is_some() {
            EngineKind::Torch
        } else {
            EngineKind::Upstream
        })
    }

    /// The provider's address, whichever name it has.
    pub fn provider_url(&self) -> Option<&Url> {
        self.upstream_url.as_ref().or(self.url.as_ref())
    }

    /// Time for all attempts together.
    pub fn retry_timeout(&self) -> Duration {
        self.retry_timeout_s.unwrap_or(self.timeout_s)
    }
}
