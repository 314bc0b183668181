//! From settings to the engine that answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{self, EngineKind, Precision, Settings, SwapPolicy, UpstreamApi};
use crate::engine::Engine;
use crate::engine::models::ModelStore;
use crate::engine::torch::{
    ComputeDevice, Dtype, OnSwap, SamplingDefaults, ToolCallFormat, TorchEngine, TorchError, TorchHandle, TorchOptions,
};
use crate::engine::upstream::{
    Api, HeadLimits, ProviderError, ProviderOptions, RetryOptions, Upstream, UpstreamOptions,
};

use super::{CliError, Exit, OrExit};

/// What answers, and the handle on it where it is the embedded model.
pub(crate) struct Built {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) torch: Option<TorchHandle>,
}

/// The folder and the name of the embedded model, where one is configured.
pub(crate) fn embedded_model(settings: &Settings) -> Result<Option<(PathBuf, String)>, CliError> {
    let Some(path) = &settings.inference.model_path else {
        return Ok(None);
    };
    let dir = model_dir(settings, path)?;
    let name = settings.inference.model_name.clone().or_else(|| {
        let last = dir.file_name()?;
        Some(last.to_string_lossy().into_owned())
    });
    Ok(Some((dir, name.unwrap_or_else(|| "model".to_owned()))))
}

/// A provider beside the embedded model, for the questions of judges.
pub(crate) fn judge(settings: &Settings) -> Result<Option<Arc<dyn Engine>>, CliError> {
    if settings.inference.provider_url().is_some() {
        return Ok(Some(Arc::new(upstream(settings)?)));
    }
    Ok(None)
}

/// The engine as configured.
pub(crate) fn build(settings: &Settings) -> Result<Built, CliError> {
    match settings.inference.engine() {
        EngineKind::Upstream => Ok(Built {
            engine: Arc::new(upstream(settings)?),
            torch: None,
        }),
        EngineKind::Torch => {
            let engine = embedded(settings)?;
            let torch = Some(engine.handle().clone());
            Ok(Built {
                engine: Arc::new(engine),
                torch,
            })
        }
    }
}

/// Everything that decides whether the engine can be built, short of loading a model; gives what answers.
pub(crate) fn check(settings: &Settings) -> Result<String, CliError> {
    match settings.inference.engine() {
        EngineKind::Upstream => {
            upstream(settings)?;
            Ok("upstream".to_owned())
        }
        EngineKind::Torch => {
            let options = torch_options(settings)?;
            if cfg!(not(feature = "torch")) {
                return Err(refused(settings, TorchError::NotCompiled));
            }
            Ok(format!("embedded, model {}", options.model_dir.display()))
        }
    }
}

/// The providers as configured.
pub(crate) fn upstream(settings: &Settings) -> Result<Upstream, CliError> {
    let inference = &settings.inference;
    let Some(url) = inference.provider_url().cloned() else {
        return Err(
            CliError::new(Exit::Usage, "nothing is configured that could answer requests")
                .of_setting(settings, "inference.upstream-url")
                .hint("name a provider: --upstream-url http://127.0.0.1:8000 --upstream-model MODEL")
                .hint("or a model of a known provider: --model ollama/llama3.2, --model openai/gpt-5")
                .hint("or a deployment file: -c serve.toml (reef init writes one)"),
        );
    };
    let mut providers = vec![ProviderOptions {
        url: url.into(),
        model: inference.upstream_model.clone(),
        override_model: inference.upstream_model_override,
        api_key: inference.upstream_api_key.as_ref().map(|key| key.expose().to_owned()),
        api: api(inference.upstream_api),
    }];
    for fallback in settings.fallbacks()? {
        let from_variable = || {
            let secret = settings.credential(fallback.api_key_env.as_deref()?)?;
            Some(secret.expose().to_owned())
        };
        providers.push(ProviderOptions {
            url: fallback.url.clone().map(String::from).unwrap_or_default(),
            model: fallback.model.clone(),
            override_model: fallback.model_override,
            api_key: fallback
                .api_key
                .as_ref()
                .map(|key| key.expose().to_owned())
                .or_else(from_variable),
            api: api(fallback.api),
        });
    }
    for (at, provider) in providers.iter().enumerate() {
        provider.check().map_err(|error| unusable(settings, at, &error))?;
    }
    let first = providers.first().cloned().unwrap_or_default();
    let options = UpstreamOptions {
        providers,
        connect_timeout: inference.connect_timeout_s,
        first_byte_timeout: inference.timeout_s,
        idle_timeout: inference.idle_timeout_s,
        retry: RetryOptions {
            retries: inference.retry_attempts.saturating_sub(1),
            deadline: inference.retry_timeout(),
            initial: inference.retry_initial_s,
            max: inference.retry_max_s,
        },
        head: HeadLimits {
            lines: inference.max_head_lines as usize,
            bytes: usize::try_from(inference.max_head_size.0).unwrap_or(usize::MAX),
        },
        proxies: settings.proxies()?,
        ..UpstreamOptions::new(first)
    };
    Upstream::new(&options).or_exit(Exit::Usage)
}

/// A provider that cannot be used, at the place of the setting that says so. The first one has settings of its own.
fn unusable(settings: &Settings, at: usize, error: &ProviderError) -> CliError {
    let own = settings.inference.upstream_url.is_some();
    let (url, key) = match at.checked_sub(1) {
        None if own => (
            "inference.upstream-url".to_owned(),
            "inference.upstream-api-key".to_owned(),
        ),
        None => ("inference.url".to_owned(), "inference.upstream-api-key".to_owned()),
        Some(at) => {
            let table = format!("inference.fallbacks[{at}]");
            (format!("{table}.url"), format!("{table}.api-key"))
        }
    };
    let wrong = match error {
        ProviderError::Key => key,
        _ => url,
    };
    settings.fault(&wrong, error.to_string()).into()
}

fn api(api: UpstreamApi) -> Api {
    match api {
        UpstreamApi::Openai => Api::Openai,
        UpstreamApi::Responses => Api::Responses,
        UpstreamApi::Anthropic => Api::Anthropic,
    }
}

/// Loads the embedded model.
fn embedded(settings: &Settings) -> Result<TorchEngine, CliError> {
    let options = torch_options(settings)?;
    TorchEngine::start(options).map_err(|error| refused(settings, error))
}

fn refused(settings: &Settings, error: TorchError) -> CliError {
    let key = match &error {
        TorchError::NoDevice { .. } => "inference.device",
        TorchError::CacheTooSmall { .. } => "inference.cache-size",
        _ => "inference.model-path",
    };
    match error {
        TorchError::NotCompiled => CliError::from_error(Exit::NotCompiled, error)
            .hint("build with the feature torch: ./scripts/setup.sh && cargo build --release")
            .hint("or name a provider with --upstream-url"),
        error => CliError::from_error(Exit::Usage, error).of_setting(settings, key),
    }
}

pub(super) fn torch_options(settings: &Settings) -> Result<TorchOptions, CliError> {
    let inference = &settings.inference;
    let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let path = inference.model_path.clone().unwrap_or_default();
    let dir = model_dir(settings, &path)?;
    let name = inference.model_name.clone().or_else(|| {
        let last = dir.file_name()?;
        Some(last.to_string_lossy().into_owned())
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let chunk = count(inference.prompt_chunk);
    Ok(TorchOptions {
        dtype: dtype(settings, &dir)?,
        device: device(settings)?,
        threads: inference.threads.map_or(cores, count),
        max_batch: count(inference.max_batch),
        max_context: inference.context.map(count),
        cache_bytes: inference.cache_size.0,
        memory_budget: inference.memory.map(|size| size.0),
        prompt_chunk: chunk,
        prompt_chunk_beside_answers: (chunk / 8).max(1),
        max_waiting: count(inference.max_queue),
        max_waiting_per_scenario: count(inference.max_queue).div_ceil(2),
        queue_timeout: inference.queue_timeout_s,
        max_loads: count(inference.max_adapters),
        on_swap: match inference.on_swap {
            SwapPolicy::Finish => OnSwap::Finish,
            SwapPolicy::Switch => OnSwap::Switch,
        },
        capture_top_k: count(inference.capture_topk),
        sampling: sampling(settings)?,
        tool_calls: inference.tool_call_parser.map(|format| match format {
            config::ToolCallFormat::Hermes => ToolCallFormat::Hermes,
            config::ToolCallFormat::Llama3Json => ToolCallFormat::Llama3Json,
        }),
        ..TorchOptions::new(dir, name.unwrap_or_else(|| "model".to_owned()))
    })
}

/// The folder of a model: the path itself, or an imported model of that name.
fn model_dir(settings: &Settings, path: &Path) -> Result<PathBuf, CliError> {
    if path.join("config.json").is_file() {
        return Ok(path.to_owned());
    }
    let fault = |problem: String| CliError::from(settings.fault("inference.model-path", problem));
    if path.is_file() {
        return Err(fault(format!(
            "{} is a file; the embedded engine serves an imported model",
            path.display()
        ))
        .hint(format!("reef model import {}", path.display()))
        .hint("then give the model's name in inference.model-path"));
    }
    let store = ModelStore::new(settings.storage.dir.join("models"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    store.resolve(&name).map_err(|error| {
        let written = path.strip_prefix(&settings.directory).unwrap_or(path);
        let failure = fault(error.to_string());
        match hub_name(written) {
            Some(name) => failure.hint(format!(
                "reef model pull hf://{name} downloads the model of that name and imports it; then repeat this command"
            )),
            None => failure.hint(
                "reef model pull hf://ORG/NAME downloads one; a directory in Hugging Face layout serves as it is",
            ),
        }
    })
}

/// `Qwen/Qwen2.5-1.5B-Instruct`: an organisation and a name, as the hub has them.
fn hub_name(path: &Path) -> Option<String> {
    let parts: Vec<&str> = path.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    let plain = |part: &str| {
        part.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
            && !part.starts_with('.')
    };
    match parts.as_slice() {
        [org, name] if plain(org) && plain(name) => Some(format!("{org}/{name}")),
        _ => None,
    }
}

fn dtype(settings: &Settings, dir: &Path) -> Result<Dtype, CliError> {
    Ok(match settings.inference.dtype {
        Precision::Float32 => Dtype::F32,
        Precision::Bfloat16 => Dtype::Bf16,
        Precision::Auto => {
            let store = ModelStore::new(dir);
            let summary = store.show(&dir.to_string_lossy());
            let summary =
                summary.map_err(|error| CliError::from(settings.fault("inference.model-path", error.to_string())))?;
            match summary.dtype.as_deref() {
                Some("bfloat16" | "float16") => Dtype::Bf16,
                _ => Dtype::F32,
            }
        }
    })
}

fn device(settings: &Settings) -> Result<ComputeDevice, CliError> {
    let number = |name: &str| name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    match settings.inference.device.as_str() {
        "cpu" => Ok(ComputeDevice::Cpu),
        "cuda" => Ok(ComputeDevice::Cuda(0)),
        other => number(other).map(ComputeDevice::Cuda).ok_or_else(|| {
            let fault = settings.fault("inference.device", "expected cpu or cuda:N");
            fault.hint("cuda:0 is the first GPU").into()
        }),
    }
}

fn sampling(settings: &Settings) -> Result<SamplingDefaults, CliError> {
    let known = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
    let table = &settings.inference.sampling_defaults;
    let fault = |key: &str, problem: &str| settings.fault(&format!("inference.sampling-defaults.{key}"), problem);
    let json = table.to_json();
    if let Some(key) = json
        .as_object()
        .into_iter()
        .flat_map(|map| map.keys())
        .find(|key| !known.contains(&key.replace('-', "_").as_str()))
    {
        return Err(fault(key, "unknown key")
            .hint(format!("its keys are {}", known.join(", ")))
            .into());
    }
    let number = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(value) => value
            .as_f64()
            .filter(|value| value.is_finite() && *value >= 0.0)
            .map(Some)
            .ok_or_else(|| CliError::from(fault(key, "expected a number of at least 0"))),
    };
    let narrow = |key| number(key).map(|value| value.map(|value| value as f32));
    Ok(SamplingDefaults {
        temperature: narrow("temperature")?,
        top_p: narrow("top_p")?,
        top_k: number("top_k")?.map(|k| k as usize),
        min_p: narrow("min_p")?,
        repetition_penalty: narrow("repetition_penalty")?,
    })
}
