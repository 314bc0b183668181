//! From settings to the engine that answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{self, EngineKind, Precision, Settings, SwapPolicy, Table, UpstreamApi};
use crate::engine::Engine;
use crate::engine::models::ModelStore;
use crate::engine::torch::{
    ComputeDevice, Dtype, OnSwap, SamplingDefaults, ToolCallFormat, TorchEngine, TorchError, TorchHandle, TorchOptions,
};
use crate::engine::upstream::{Api, ProviderOptions, RetryOptions, Upstream, UpstreamOptions};

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
    if settings.inference.upstream_url.is_some() || settings.inference.url.is_some() {
        return upstream(settings).map(Some);
    }
    Ok(None)
}

/// The engine as configured.
pub(crate) fn build(settings: &Settings) -> Result<Built, CliError> {
    match settings.inference.engine() {
        EngineKind::Upstream => Ok(Built {
            engine: upstream(settings)?,
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
                return Err(refused(TorchError::NotCompiled));
            }
            Ok(format!("embedded, model {}", options.model_dir.display()))
        }
    }
}

fn upstream(settings: &Settings) -> Result<Arc<dyn Engine>, CliError> {
    let inference = &settings.inference;
    let Some(url) = inference.upstream_url.clone().or_else(|| inference.url.clone()) else {
        return Err(
            CliError::new(Exit::Usage, "nothing is configured that could answer requests")
                .hint("name a provider: --upstream-url http://127.0.0.1:8000 --upstream-model MODEL")
                .hint("or a model of a known provider: --model ollama/llama3.2, --model openai/gpt-5")
                .hint("or a deployment file: -c serve.toml (reef init writes one)"),
        );
    };
    let mut providers = vec![ProviderOptions {
        url,
        model: inference.upstream_model.clone(),
        override_model: inference.upstream_model_override,
        api_key: inference.upstream_api_key.as_ref().map(|key| key.expose().to_owned()),
        api: api(inference.upstream_api),
    }];
    for fallback in settings.fallbacks().or_exit(Exit::Usage)? {
        let from_variable = || settings.variable(fallback.api_key_env.as_deref()?).map(str::to_owned);
        providers.push(ProviderOptions {
            url: fallback.url.clone().unwrap_or_default(),
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
        ..UpstreamOptions::new(first)
    };
    let engine = Upstream::new(&options).or_exit(Exit::Usage)?;
    Ok(Arc::new(engine))
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
    TorchEngine::start(options).map_err(refused)
}

fn refused(error: TorchError) -> CliError {
    match error {
        TorchError::NotCompiled => CliError::from_error(Exit::NotCompiled, error)
            .hint("build with the feature torch: ./scripts/setup.sh && cargo build --release")
            .hint("or name a provider with --upstream-url"),
        error => CliError::from_error(Exit::Usage, error),
    }
}

fn torch_options(settings: &Settings) -> Result<TorchOptions, CliError> {
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
        dtype: dtype(inference.dtype, &dir)?,
        device: device(inference.device.as_deref())?,
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
        sampling: sampling(&inference.sampling_defaults)?,
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
    if path.is_file() {
        return Err(CliError::new(
            Exit::Usage,
            format!(
                "{} is a file; the embedded engine serves an imported model",
                path.display()
            ),
        )
        .hint(format!("reef model import {}", path.display()))
        .hint("then give the model's name in inference.model-path"));
    }
    let store = ModelStore::new(settings.storage.dir.join("models"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    store.resolve(&name).or_exit(Exit::Usage)
}

fn dtype(precision: Precision, dir: &Path) -> Result<Dtype, CliError> {
    Ok(match precision {
        Precision::Float32 => Dtype::F32,
        Precision::Bfloat16 => Dtype::Bf16,
        Precision::Float16 => {
            return Err(CliError::new(
                Exit::Usage,
                "inference.dtype float16 is not served by the embedded engine",
            )
            .hint("use bfloat16 for half the memory, or float32"));
        }
        Precision::Auto => {
            let store = ModelStore::new(dir);
            let summary = store.show(&dir.to_string_lossy()).or_exit(Exit::Usage)?;
            match summary.dtype.as_deref() {
                Some("bfloat16" | "float16") => Dtype::Bf16,
                _ => Dtype::F32,
            }
        }
    })
}

fn device(name: Option<&str>) -> Result<ComputeDevice, CliError> {
    let number = |name: &str| name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    match name {
        None | Some("cpu") => Ok(ComputeDevice::Cpu),
        Some("cuda") => Ok(ComputeDevice::Cuda(0)),
        Some(other) => number(other).map(ComputeDevice::Cuda).ok_or_else(|| {
            CliError::new(Exit::Usage, format!("inference.device is {other:?}")).hint("use cpu or cuda:N")
        }),
    }
}

fn sampling(table: &Table) -> Result<SamplingDefaults, CliError> {
    let known = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
    let json = table.to_json();
    if let Some(key) = json
        .as_object()
        .into_iter()
        .flat_map(|map| map.keys())
        .find(|key| !known.contains(&key.replace('-', "_").as_str()))
    {
        return Err(
            CliError::new(Exit::Usage, format!("inference.sampling-defaults has no key {key}"))
                .hint(format!("its keys are {}", known.join(", "))),
        );
    }
    let number = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(value) => value
            .as_f64()
            .filter(|value| value.is_finite() && *value >= 0.0)
            .map(Some)
            .ok_or_else(|| {
                CliError::new(
                    Exit::Usage,
                    format!("inference.sampling-defaults.{key} must be a number from 0 on"),
                )
            }),
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
