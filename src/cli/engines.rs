//! From settings to the engine that answers.

use std::sync::Arc;

use crate::config::{EngineKind, Settings, UpstreamApi};
use crate::engine::Engine;
use crate::engine::upstream::{Api, ProviderOptions, RetryOptions, Upstream, UpstreamOptions};

use super::{CliError, Exit, OrExit};

/// The engine as configured.
pub(crate) fn build(settings: &Settings) -> Result<Arc<dyn Engine>, CliError> {
    match settings.inference.engine() {
        EngineKind::Upstream => upstream(settings),
        EngineKind::Torch => embedded(settings),
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

fn embedded(_settings: &Settings) -> Result<Arc<dyn Engine>, CliError> {
    Err(
        CliError::new(Exit::NotCompiled, "this build cannot serve a model of its own")
            .hint("build it with the feature torch: ./scripts/setup.sh && cargo build --release")
            .hint("or name a provider with --upstream-url"),
    )
}
