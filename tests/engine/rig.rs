//! A tiny model, an engine on it, and requests to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode};
use reef::domain::{
    ContentId, ContentKind, FrozenRelease, ReleaseId, Route, RuntimeLoadId, ScenarioName, TokenCapture,
};
use reef::engine::models::{synthetic_config, write_synthetic};
use reef::engine::torch::model::{Lora, LoraSpec, Model, Target};
use reef::engine::torch::{TorchEngine, TorchOptions, TorchStatus};
use reef::engine::{ByteStream, CaptureSlot, Engine, EngineError, EngineRequest};
use serde_json::{Value, json};
use tch::{Device, Kind};
use tempfile::TempDir;

/// The longest any wait may take on a slow, loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An engine on a synthetic model of a million parameters.
pub struct Rig {
    pub engine: TorchEngine,
    pub model_dir: PathBuf,
    dir: TempDir,
}

/// A finished answer.
#[derive(Debug)]
pub struct Answer {
    pub body: String,
    pub capture: TokenCapture,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub fn scenario(name: &str) -> ScenarioName {
    ScenarioName::new(name).unwrap()
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A chat request; `extra` is merged over it.
pub fn chat(text: &str, extra: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 24, "seed": 1});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

impl Rig {
    pub fn new(change: impl FnOnce(&mut TorchOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model_dir = dir.path().join("model");
        write_synthetic(&model_dir, &synthetic_config(), 7).unwrap();
        let mut options = TorchOptions::new(&model_dir, "tiny");
        options.max_batch = 4;
        options.max_context = Some(512);
        change(&mut options);
        Self {
            engine: TorchEngine::start(options).unwrap(),
            model_dir,
            dir,
        }
    }

    /// An engine as the options say.
    pub fn on(options: TorchOptions) -> Self {
        Self {
            model_dir: options.model_dir.clone(),
            engine: TorchEngine::start(options).unwrap(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Writes an adapter of rank 16 on every projection.
    pub fn wide_adapter(&self, name: &str, seed: u64) -> PathBuf {
        self.write_adapter(name, seed, 1e-3, 16, &Target::ALL)
    }

    pub fn status(&self) -> TorchStatus {
        self.engine.handle().status()
    }

    /// Writes an adapter that changes what the model says.
    pub fn adapter(&self, name: &str, seed: u64) -> PathBuf {
        self.adapter_with(name, seed, 0.5)
    }

    /// Writes an adapter whose `B` factors hold one value everywhere.
    pub fn adapter_with(&self, name: &str, seed: u64, value: f64) -> PathBuf {
        self.write_adapter(name, seed, value, 4, &[Target::Q, Target::V, Target::Down])
    }

    fn write_adapter(&self, name: &str, seed: u64, value: f64, rank: usize, targets: &[Target]) -> PathBuf {
        let spec = LoraSpec {
            rank,
            alpha: 8.0,
            rank_stabilized: false,
            targets: targets.to_vec(),
        };
        let config = self.engine.handle().config();
        let lora = Lora::init(config, spec, seed, Device::Cpu).unwrap();
        for (parameter, tensor) in lora.parameters() {
            if parameter.contains("lora_B") {
                drop(tch::no_grad(|| tensor.shallow_clone().fill_(value)));
            }
        }
        let dir = self.dir.path().join(name);
        lora.save(&dir, "tiny").unwrap();
        dir
    }

    fn request(
        &self,
        route: Route,
        scenario: &ScenarioName,
        body: &Value,
        frozen: Option<RuntimeLoadId>,
    ) -> EngineRequest {
        EngineRequest {
            route,
            query: None,
            headers: HeaderMap::new(),
            body: Bytes::from(body.to_string()),
            outline: None,
            scenario: scenario.clone(),
            release: FrozenRelease {
                kind: ContentKind::Artifact,
                release_id: ReleaseId::new("r1").unwrap(),
                content_id: ContentId::new(format!("sha256:{}", "0".repeat(64))).unwrap(),
                parent_release_id: None,
                runtime_load_id: frozen,
            },
        }
    }

    /// Begins an answer.
    pub async fn begin(
        &self,
        scenario: &ScenarioName,
        body: &Value,
        frozen: Option<RuntimeLoadId>,
    ) -> Result<(ByteStream, CaptureSlot), EngineError> {
        let request = self.request(Route::ChatCompletions, scenario, body, frozen);
        let reply = self.engine.call(request).await?;
        if reply.status != StatusCode::OK {
            panic!("{}: {}", reply.status, read(reply.body).await.unwrap());
        }
        Ok((reply.body, reply.capture.unwrap()))
    }

    /// A whole answer in scenario `s`.
    pub async fn answer(&self, body: &Value) -> Answer {
        self.answer_in(&scenario("s"), body, None).await.unwrap()
    }

    pub async fn answer_in(
        &self,
        scenario: &ScenarioName,
        body: &Value,
        frozen: Option<RuntimeLoadId>,
    ) -> Result<Answer, EngineError> {
        let (stream, slot) = self.begin(scenario, body, frozen).await?;
        let body = read(stream).await?;
        let capture = slot.get().expect("captured before the body ends").clone();
        Ok(Answer { body, capture })
    }

    /// The status and body of a refusal.
    pub async fn refusal(&self, route: Route, body: &Value) -> (StatusCode, Value) {
        let reply = self
            .engine
            .call(self.request(route, &scenario("s"), body, None))
            .await
            .unwrap();
        let status = reply.status;
        (status, serde_json::from_str(&read(reply.body).await.unwrap()).unwrap())
    }

    /// Waits until the engine is in the state wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&TorchStatus) -> bool) {
        let start = std::time::Instant::now();
        while !wanted(&self.status()) {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", self.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub async fn read(mut stream: ByteStream) -> Result<String, EngineError> {
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(String::from_utf8(all).unwrap())
}

/// Runs many answers at once and gives them in order.
pub async fn all(rig: &Arc<Rig>, bodies: Vec<(ScenarioName, Value)>) -> Vec<Result<Answer, EngineError>> {
    let tasks: Vec<_> = bodies
        .into_iter()
        .map(|(scenario, body)| {
            let rig = Arc::clone(rig);
            tokio::spawn(async move { rig.answer_in(&scenario, &body, None).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

/// Log-probabilities of `tokens` after `prompt` by a forward pass of their own, at a temperature.
pub fn recomputed(model_dir: &Path, adapter: Option<&Path>, capture: &TokenCapture) -> Vec<f32> {
    use reef::engine::torch::model::{ForwardRow, LogitsOf};
    let model = Model::load(model_dir, Kind::Float, Device::Cpu).unwrap();
    let adapter = adapter.map(|dir| {
        let lora = Lora::load(dir, model.config(), Device::Cpu).unwrap();
        lora.for_serving(model.config(), Kind::Float, Device::Cpu).unwrap()
    });
    let mut tokens = capture.prompt_token_ids.clone();
    tokens.extend_from_slice(&capture.token_ids);
    let mut cache = model.new_cache(1, tokens.len()).unwrap();
    let row = ForwardRow {
        slot: 0,
        tokens: &tokens,
        adapter: adapter.as_ref(),
        logits: LogitsOf::All,
    };
    let logits = model.forward(&[row], &mut cache).unwrap().values / f64::from(capture.temperature);
    let logprobs = logits.log_softmax(-1, Kind::Float);
    let first = capture.prompt_token_ids.len() - 1;
    (first..)
        .zip(&capture.token_ids)
        .map(|(line, id)| {
            let value = logprobs.double_value(&[i64::try_from(line).unwrap(), i64::from(*id)]);
            value as f32
        })
        .collect()
}

#[track_caller]
pub fn assert_close(ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len());
    for (at, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!((a - b).abs() <= tolerance, "token {at}: {a} and {b}");
    }
}
