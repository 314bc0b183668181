//! The engine from outside its thread: starting it, new weights, current loads, the base model for training, numbers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tch::{Device, Kind};
use tokio::sync::{mpsc, oneshot};

use super::actor::{self, Command, Incoming, Shared, Start};
use super::loads::{LoadRefusal, load_id};
use super::state::Limits;
use super::vocabulary::Vocabulary;
use crate::domain::{RuntimeLoadId, ScenarioName};
use crate::engine::models::{MemoryEstimate, MemoryPlan, ModelConfig};
use crate::engine::torch::model::{ForwardRow, LogitsOf, Lora, Model, ServingLora, Tokenizer};
use crate::engine::torch::{ComputeDevice, Dtype, TorchError, TorchOptions, TorchStatus};
use crate::sys::random;
use crate::sys::task;

/// Commands that wait for the engine thread; it empties the queue at every step.
const COMMANDS: usize = 1024;

/// A handle on the running engine. Clones share it; when the last one goes, the engine stops.
#[derive(Clone)]
pub struct TorchHandle {
    inner: Arc<Inner>,
}

struct Inner {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    process: String,
    /// Storage shared with the engine thread, for probes and for training.
    base: Mutex<Model>,
    config: ModelConfig,
    tokenizer: Arc<Tokenizer>,
    vocabulary: Arc<Vocabulary>,
    options: TorchOptions,
    max_context: usize,
    /// New weights come in one at a time.
    loading: tokio::sync::Mutex<()>,
}

impl TorchHandle {
    /// Loads the model and starts the engine's thread. Refuses, before loading, what does not fit the memory budget.
    /// Blocks while it loads.
    pub fn start(options: TorchOptions) -> Result<Self, TorchError> {
        let options = checked(options)?;
        let config = ModelConfig::load(&options.model_dir)?;
        let max_context = context(&config, &options)?;
        if let Some(budget) = options.memory_budget {
            memory(&config, &options, max_context).check("this model with this batch and context", budget)?;
        }
        let tokenizer = Arc::new(Tokenizer::load(&options.model_dir, &config)?);
        let vocabulary = Arc::new(Vocabulary::new(Arc::clone(&tokenizer), config.vocab_size));
        let model = Model::load(&options.model_dir, kind(options.dtype), device(options.device)?)?;
        let cache = model.new_cache(options.max_batch, max_context)?;
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let shared = Arc::new(Shared::default());
        shared.residency.write().capacity = options.max_loads;
        let process = random::hex_token();
        let start = Start {
            model: model.shallow_clone(),
            cache,
            vocabulary: Arc::clone(&vocabulary),
            limits: Limits {
                slots: options.max_batch,
                prompt_chunk: options.prompt_chunk,
                prompt_chunk_beside_answers: options.prompt_chunk_beside_answers,
                waiting: options.max_waiting,
                waiting_per_scenario: options.max_waiting_per_scenario,
            },
            capacity: options.max_loads,
            on_swap: options.on_swap,
            process: process.clone(),
            shared: Arc::clone(&shared),
            commands: receiver,
        };
        spawn(start, options.threads)?;
        Ok(Self {
            inner: Arc::new(Inner {
                commands,
                shared,
                process,
                base: Mutex::new(model),
                config,
                tokenizer,
                vocabulary,
                options,
                max_context,
                loading: tokio::sync::Mutex::new(()),
            }),
        })
    }

    /// Reads a PEFT folder, probes the adapter, and makes it what new requests of `scenario` are served with. On any
    /// error the scenario keeps the load it has.
    pub async fn load_adapter(&self, scenario: &ScenarioName, dir: &Path) -> Result<RuntimeLoadId, TorchError> {
        let _one_at_a_time = self.inner.loading.lock().await;
        let (this, folder) = (self.clone(), dir.to_owned());
        let adapter = blocking(move || this.read_adapter(&folder)).await?;
        self.install(scenario, Incoming::Adapter(adapter)).await
    }

    /// Reads a whole model of the same shape, probes it, and makes it what new requests of `scenario` are served with.
    /// On any error the scenario keeps the load it has.
    pub async fn load_full_weights(&self, scenario: &ScenarioName, dir: &Path) -> Result<RuntimeLoadId, TorchError> {
        let _one_at_a_time = self.inner.loading.lock().await;
        let (this, folder) = (self.clone(), dir.to_owned());
        let model = blocking(move || this.read_model(&folder)).await?;
        self.install(scenario, Incoming::Full(Box::new(model))).await
    }

    /// Serves `scenario` with the base model again; its own load goes when its last request has ended.
    pub async fn unload(&self, scenario: &ScenarioName) -> Result<RuntimeLoadId, TorchError> {
        let _one_at_a_time = self.inner.loading.lock().await;
        self.install(scenario, Incoming::Base).await
    }

    /// The load that new requests of a scenario are served with.
    pub fn current_load(&self, scenario: &ScenarioName) -> Option<RuntimeLoadId> {
        let installed = self.inner.shared.current.read().get(scenario).cloned();
        installed.or_else(|| load_id(&self.inner.process, scenario, 1))
    }

    /// The base model for use on another thread: the storage is shared, nothing is copied. Whoever computes with it
    /// sets its own thread count (`tch::set_num_threads` holds for the calling thread).
    pub fn base_model(&self) -> Model {
        self.inner.base.lock().shallow_clone()
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.inner.tokenizer
    }

    /// The settings in force.
    pub fn options(&self) -> &TorchOptions {
        &self.inner.options
    }

    /// Positions of one conversation.
    pub fn max_context(&self) -> usize {
        self.inner.max_context
    }

    /// What the engine is doing.
    pub fn status(&self) -> TorchStatus {
        let shared = &self.inner.shared;
        let read = |place: &AtomicU64| place.load(Ordering::Relaxed);
        TorchStatus {
            running: read(&shared.running),
            waiting: read(&shared.waiting),
            prompt_tokens: read(&shared.prompt_tokens),
            reused_tokens: read(&shared.reused_tokens),
            generated_tokens: read(&shared.generated_tokens),
            finished: read(&shared.finished),
            cancelled: read(&shared.cancelled),
            failed: read(&shared.failed),
            swaps: read(&shared.swaps),
            longest_swap_us: read(&shared.longest_swap_us),
            residency: *shared.residency.read(),
        }
    }

    pub(super) fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.inner.vocabulary
    }

    pub(super) fn commands(&self) -> &mpsc::Sender<Command> {
        &self.inner.commands
    }

    async fn install(&self, scenario: &ScenarioName, weights: Incoming) -> Result<RuntimeLoadId, TorchError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Install {
            scenario: scenario.clone(),
            weights,
            reply,
        };
        self.inner
            .commands
            .send(command)
            .await
            .map_err(|_| TorchError::Stopped)?;
        match answer.await {
            Ok(Ok(id)) => Ok(id),
            Ok(Err(LoadRefusal::NoRoom { resident })) => Err(TorchError::NoRoom {
                resident,
                capacity: self.inner.options.max_loads,
            }),
            Ok(Err(LoadRefusal::NotResident)) | Err(_) => Err(TorchError::Stopped),
        }
    }

    fn read_adapter(&self, dir: &Path) -> Result<ServingLora, TorchError> {
        let model = self.base_model();
        let lora = Lora::load(dir, model.config(), model.device())?;
        let adapter = lora.for_serving(model.config(), model.kind(), model.device())?;
        self.probe(&model, Some(&adapter), dir)?;
        Ok(adapter)
    }

    fn read_model(&self, dir: &Path) -> Result<Model, TorchError> {
        let config = ModelConfig::load(dir)?;
        if let Some(field) = other_shape(&self.inner.config, &config) {
            let dir = dir.to_owned();
            return Err(TorchError::OtherShape { dir, field });
        }
        if let Some(budget) = self.inner.options.memory_budget {
            let estimate = memory(&config, &self.inner.options, self.inner.max_context);
            let both = MemoryEstimate {
                weights: estimate.weights * 2,
                ..estimate
            };
            both.check("the new model beside the one served", budget)?;
        }
        let base = self.base_model();
        let model = Model::load(dir, base.kind(), base.device())?;
        self.probe(&model, None, dir)?;
        Ok(model)
    }

    /// One forward pass on this thread: every logit must be a finite number.
    fn probe(&self, model: &Model, adapter: Option<&ServingLora>, dir: &Path) -> Result<(), TorchError> {
        let vocab = u32::try_from(model.config().vocab_size).unwrap_or(u32::MAX);
        let tokens: Vec<u32> = (0..4_u32)
            .map(|n| n.wrapping_mul(2_654_435_761) % vocab.max(1))
            .collect();
        let mut cache = model.new_cache(1, tokens.len())?;
        let row = ForwardRow {
            slot: 0,
            tokens: &tokens,
            adapter,
            logits: LogitsOf::All,
        };
        let logits = model.forward(&[row], &mut cache)?;
        let finite = logits
            .values
            .f_isfinite()
            .and_then(|finite| finite.f_all())
            .and_then(|all| all.f_int64_value(&[]));
        let reason = match finite {
            Ok(1) => return Ok(()),
            Ok(_) => "a forward pass gives numbers that are not finite".to_owned(),
            Err(error) => error.to_string(),
        };
        let dir = dir.to_owned();
        Err(TorchError::Probe { dir, reason })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // If the queue is full the thread finds the channel closed instead.
        let _full = self.commands.try_send(Command::Stop);
    }
}

fn checked(options: TorchOptions) -> Result<TorchOptions, TorchError> {
    let setting = |setting, rule| Err(TorchError::Setting { setting, rule });
    if !(1..=256).contains(&options.max_batch) {
        return setting("inference.max-batch", "between 1 and 256");
    }
    if options.max_context.is_some_and(|context| context < 16) {
        return setting("inference.context", "at least 16");
    }
    if !(1..=1024).contains(&options.threads) {
        return setting("inference.threads", "between 1 and 1024");
    }
    if options.max_loads == 0 {
        return setting("inference.max-adapters", "at least 1");
    }
    if options.prompt_chunk == 0 || options.prompt_chunk_beside_answers == 0 {
        return setting("inference.prompt-chunk", "at least 1");
    }
    if options.max_waiting == 0 || options.max_waiting_per_scenario == 0 {
        return setting("inference.max-queue", "at least 1");
    }
    Ok(options)
}

/// The positions of each conversation: as configured, else what the model was made for and the cache has room for.
fn context(config: &ModelConfig, options: &TorchOptions) -> Result<usize, TorchError> {
    let slots = options.max_batch as u64;
    let of_position = 2 * (config.n_layers * config.n_kv_heads * config.head_dim) as u64 * bytes(options.dtype);
    let room = options.cache_bytes / (slots * of_position).max(1);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    let wanted = options.max_context.unwrap_or(room.max(16)).min(config.max_positions);
    if wanted > room {
        return Err(TorchError::CacheTooSmall {
            have: options.cache_bytes,
            need: slots * of_position * wanted as u64,
            slots: options.max_batch,
            positions: wanted,
        });
    }
    Ok(wanted)
}

fn memory(config: &ModelConfig, options: &TorchOptions, max_context: usize) -> MemoryEstimate {
    let plan = MemoryPlan {
        bytes_per_value: bytes(options.dtype),
        slots: options.max_batch as u64,
        max_context: max_context as u64,
        max_tokens: (options.prompt_chunk + options.max_batch) as u64,
    };
    MemoryEstimate::of(config, &plan)
}

fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
    }
}

fn bytes(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::F32 => 4,
        Dtype::Bf16 => 2,
    }
}

fn device(device: ComputeDevice) -> Result<Device, TorchError> {
    match device {
        ComputeDevice::Cpu => Ok(Device::Cpu),
        ComputeDevice::Cuda(index) => {
            let there = i64::try_from(index).is_ok_and(|index| index < tch::Cuda::device_count());
            if there {
                Ok(Device::Cuda(index))
            } else {
                Err(TorchError::NoDevice { index })
            }
        }
    }
}

/// The first thing in which two models differ that a shared cache and tokenizer cannot bear.
fn other_shape(served: &ModelConfig, new: &ModelConfig) -> Option<&'static str> {
    let same = [
        ("architecture", served.architecture == new.architecture),
        ("vocabulary size", served.vocab_size == new.vocab_size),
        ("number of layers", served.n_layers == new.n_layers),
        ("number of key heads", served.n_kv_heads == new.n_kv_heads),
        ("head size", served.head_dim == new.head_dim),
        ("hidden size", served.hidden_size == new.hidden_size),
    ];
    same.into_iter().find(|(_, same)| !same).map(|(field, _)| field)
}

fn spawn(start: Start, threads: usize) -> Result<(), TorchError> {
    let threads = i32::try_from(threads).unwrap_or(1);
    let body = move || {
        tch::set_num_threads(threads);
        actor::run(start);
    };
    task::thread("reef-engine", body)
        .map(drop)
        .map_err(|source| TorchError::Thread { source })
}

/// Runs file reading and probing off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TorchError> + Send + 'static,
) -> Result<T, TorchError> {
    task::blocking("reading weights", work).await?
}
