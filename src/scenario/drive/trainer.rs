//! Who makes a step: an external program, or the embedded trainer. Both leave a complete candidate directory, and both
//! may be asked again for a step they have finished.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::LoopError;
use crate::domain::{BatchId, ScenarioName};
use crate::recipe::Recipe;
use crate::release::TrainingState;
use crate::sys::program::Program;

/// A step to make.
#[derive(Debug, Clone)]
pub(super) struct StepOrder {
    pub scenario: ScenarioName,
    pub step: u64,
    pub batch: BatchId,
    /// The samples, one JSON object a line.
    pub batch_file: PathBuf,
    /// The files of the release (or checkpoint) it goes on from; `None` for the bare base model.
    pub parent: Option<PathBuf>,
    /// What there is of its training state.
    pub state: TrainingState,
    /// Where the candidate goes. It does not exist yet.
    pub output: PathBuf,
    pub seed: u64,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StepMade {
    /// A candidate.
    Trained { metrics: Map<String, Value> },
    /// Nothing to learn.
    Skipped {
        reason: String,
        metrics: Map<String, Value>,
    },
}

/// How a trainer reports its progress: a share between 0 and 1, and a word.
pub(super) type Watch<'a> = &'a (dyn Fn(f64, &str) + Send + Sync);

/// Makes the step with the program of the recipe. JSON lines:
///
/// ```text
/// -> {"event":"step","version":1,"scenario":…,"step":3,"batch_id":…,"batch":FILE,"parent":DIR or null,"parent_state":"whole",
///     "output":DIR,"seed":…,"objective":{…},"trainer":{…}}
/// <- {"event":"progress","fraction":0.5,"message":"…"}         any number of times
/// <- {"event":"done","metrics":{…}}   or   {"event":"skip","reason":"…","metrics":{…}}
/// ```
pub(super) async fn train_by_program(
    recipe: &Recipe,
    order: &StepOrder,
    cancel: &CancellationToken,
    watch: Watch<'_>,
) -> Result<StepMade, LoopError> {
    #[derive(Deserialize)]
    #[serde(tag = "event", rename_all = "lowercase")]
    enum Said {
        Progress {
            #[serde(default)]
            fraction: f64,
            #[serde(default)]
            message: String,
        },
        Done {
            #[serde(default)]
            metrics: Map<String, Value>,
        },
        Skip {
            reason: String,
            #[serde(default)]
            metrics: Map<String, Value>,
        },
    }
    let failed = |reason: String| LoopError::Trainer { reason };
    let limit = Duration::from_secs_f64(recipe.trainer.timeout_s);
    std::fs::create_dir_all(&order.output).map_err(|source| LoopError::Work {
        path: order.output.clone(),
        doing: "making the candidate's directory",
        source,
    })?;
    let mut program = Program::start(&recipe.trainer.command, recipe.directory.as_deref(), limit, cancel)
        .map_err(|error| failed(error.to_string()))?;
    let ask = json!({
        "event": "step", "version": 1, "scenario": order.scenario, "step": order.step, "batch_id": order.batch,
        "batch": order.batch_file, "parent": order.parent, "parent_state": order.state.as_str(), "output": order.output, "seed": order.seed,
        "objective": recipe.objective, "trainer": recipe.trainer,
    });
    program.send(&ask).await.map_err(|error| stopped_or(&error, cancel))?;
    program.close_input();
    loop {
        let value = match program.receive().await.map_err(|error| stopped_or(&error, cancel))? {
            Some(value) => value,
            None => {
                let fate = program.fate().await;
                return Err(failed(format!("the program ended without a result: {fate}")));
            }
        };
        if value.get("event").is_none() {
            // Something it printed, such as a library's figures.
            continue;
        }
        match serde_json::from_value(value) {
            Ok(Said::Progress { fraction, message }) => watch(fraction.clamp(0.0, 1.0), &message),
            Ok(Said::Done { metrics }) => {
                let empty = std::fs::read_dir(&order.output).map(|mut entries| entries.next().is_none());
                if empty.unwrap_or(true) {
                    return Err(failed(format!(
                        "the program left nothing in {}",
                        order.output.display()
                    )));
                }
                return Ok(StepMade::Trained { metrics });
            }
            Ok(Said::Skip { reason, metrics }) => return Ok(StepMade::Skipped { reason, metrics }),
            Err(error) => return Err(failed(format!("the program wrote something unexpected: {error}"))),
        }
    }
}

fn stopped_or(error: &std::io::Error, cancel: &CancellationToken) -> LoopError {
    if cancel.is_cancelled() {
        LoopError::Stopped
    } else {
        LoopError::Trainer {
            reason: error.to_string(),
        }
    }
}

/// What is left beside a finished candidate, so that it is not made twice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Marker {
    pub batch: BatchId,
    pub step: u64,
    pub parent: Option<PathBuf>,
    pub recipe_digest: String,
    pub made: StepMade,
}

impl Marker {
    pub(super) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), LoopError> {
        let text = serde_json::to_vec(self).map_err(|error| LoopError::Trainer {
            reason: error.to_string(),
        })?;
        crate::sys::durable::write(path, &text).map_err(|source| LoopError::Work {
            path: path.to_path_buf(),
            doing: "marking a candidate complete",
            source,
        })
    }
}

/// Makes every file of a directory durable.
pub(super) fn sync_tree(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else if path.is_file() {
            std::fs::File::open(&path)?.sync_all()?;
        }
    }
    crate::sys::durable::sync_dir(dir)
}
