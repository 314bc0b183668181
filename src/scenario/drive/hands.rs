//! What a driver works with: the engine that answers for the gate, and the embedded trainer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{LoopError, Workshop};
use crate::domain::{ContentId, ContentKind, FrozenRelease, ReleaseId, ScenarioName, Verdict};
use crate::engine::Engine;
use crate::engine::torch::TorchHandle;
use crate::eval::{Contest, Question, Side, Terms, judge_by_answers};
use crate::recipe::{Recipe, TrainerKind};
use crate::scenario::live;
use crate::train::{Backend, Placement, TrainSettings, Trainer};

/// The engine of this process.
#[derive(Clone)]
pub struct Answering {
    /// What answers.
    pub engine: Arc<dyn Engine>,
    /// The handle on it where it is the embedded model.
    pub torch: Option<TorchHandle>,
}

/// The embedded trainer, ready.
pub(super) struct Embedded {
    pub backend: Arc<Backend>,
    pub settings: TrainSettings,
    pub base: PathBuf,
    pub base_name: String,
}

/// The base model of the embedded trainer.
#[derive(Debug, Clone)]
pub struct BaseModel {
    /// Its folder.
    pub dir: PathBuf,
    /// Its name, written into adapters.
    pub name: String,
    /// The program that child processes run, for `placement = "process"`.
    pub program: PathBuf,
}

/// What a driver works with.
#[derive(Default)]
pub struct Hands {
    answering: Option<Answering>,
    embedded: Option<Embedded>,
    judge: Option<Arc<dyn Engine>>,
    workshop: Option<Workshop>,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands")
            .field(
                "answering",
                &self.answering.as_ref().map(|answering| answering.engine.kind()),
            )
            .field("embedded", &self.embedded.is_some())
            .finish_non_exhaustive()
    }
}

impl Hands {
    /// Checks that the recipe can be followed with what is here, before anything starts.
    pub fn new(
        recipe: &Recipe,
        answering: Option<Answering>,
        base: Option<BaseModel>,
        judge: Option<Arc<dyn Engine>>,
    ) -> Result<Self, LoopError> {
        let failed = |reason: String| LoopError::Recipe { reason };
        let embedded = if recipe.learns() && recipe.trainer.backend == TrainerKind::Torch {
            let (settings, placement) =
                TrainSettings::from_recipe(recipe).map_err(|error| failed(error.to_string()))?;
            let base = base.ok_or_else(|| {
                failed("trains the weights of a model in this process, and inference.model-path names none".to_owned())
            })?;
            let backend = match placement {
                Placement::Inline => Backend::Inline(trainer(answering.as_ref())),
                Placement::Process => Backend::Process { program: base.program },
            };
            Some(Embedded {
                backend: Arc::new(backend),
                settings,
                base: base.dir,
                base_name: base.name,
            })
        } else {
            None
        };
        Ok(Self {
            answering,
            embedded,
            judge,
            workshop: None,
        })
    }

    /// For measuring only.
    pub fn measuring(engine: &Arc<dyn Engine>, torch: Option<&TorchHandle>, judge: Option<Arc<dyn Engine>>) -> Self {
        Self {
            answering: Some(Answering {
                engine: Arc::clone(engine),
                torch: torch.cloned(),
            }),
            embedded: None,
            judge,
            workshop: None,
        }
    }

    /// With what the evolution of harness trees needs.
    #[must_use]
    pub fn with_workshop(mut self, workshop: Workshop) -> Self {
        self.workshop = Some(workshop);
        self
    }

    pub(super) fn workshop(&self) -> Result<&Workshop, LoopError> {
        self.workshop.as_ref().ok_or_else(|| LoopError::Trainer {
            reason: "nothing is configured that could run an agent: name a model (inference.upstream-url)".to_owned(),
        })
    }

    /// Who answers the questions of `judge` checkers when no side of a contest is a load of its own.
    pub(super) fn judge_as(&self, scenario: &ScenarioName, release: &FrozenRelease) -> Option<Side> {
        self.judge.as_ref().map(|engine| Side {
            engine: Arc::clone(engine),
            scenario: scenario.clone(),
            release: release.clone(),
        })
    }

    pub(super) fn embedded(&self) -> Result<&Embedded, LoopError> {
        self.embedded.as_ref().ok_or_else(|| LoopError::Trainer {
            reason: "this process has no embedded trainer".to_owned(),
        })
    }

    /// The folder of the model that answers for the gate, where this process holds it.
    pub(super) fn model(&self) -> Option<&Path> {
        let torch = self.answering.as_ref()?.torch.as_ref()?;
        Some(torch.options().model_dir.as_path())
    }

    fn answering(&self) -> Result<&Answering, LoopError> {
        self.answering.as_ref().ok_or_else(|| LoopError::Gate {
            reason: "no engine is at hand that could answer with the candidate: set inference.model-path".to_owned(),
        })
    }

    /// Loads files under a name of their own and gives the side that answers with them.
    async fn side(&self, name: &str, files: Option<&Path>) -> Result<Side, LoopError> {
        let failed = |reason: String| LoopError::Gate { reason };
        let answering = self.answering()?;
        let torch = answering.torch.as_ref().ok_or_else(|| {
            failed("the engine is a provider elsewhere, which cannot be given a candidate's weights".to_owned())
        })?;
        let scenario = ScenarioName::new(name)?;
        let load = live::load(torch, &scenario, files).await.map_err(failed)?;
        Ok(Side {
            engine: Arc::clone(&answering.engine),
            release: FrozenRelease {
                kind: ContentKind::LiveWeights,
                release_id: ReleaseId::new(name)?,
                content_id: ContentId::new(format!("sha256:{}", "0".repeat(64)))?,
                parent_release_id: None,
                runtime_load_id: Some(load),
            },
            scenario,
        })
    }

    /// Lets go of the weights of a side.
    async fn release(&self, side: &Side) {
        if let Some(torch) = self.answering.as_ref().and_then(|answering| answering.torch.as_ref())
            && let Err(error) = torch.unload(&side.scenario).await
        {
            tracing::warn!(%error, side = %side.scenario, "the weights of a measured side stay loaded");
        }
    }

    /// Loads both sides beside what serves, lets them answer, and lets them go. Without `against` the candidate is
    /// measured alone. `name` keeps contests apart that may run at the same time.
    pub async fn contest(
        &self,
        name: &str,
        terms: &Terms<'_>,
        questions: &[Question],
        candidate: Option<&Path>,
        against: Option<Option<&Path>>,
        cancel: &CancellationToken,
        watch: &(dyn Fn(usize) + Send + Sync),
    ) -> Result<Verdict, LoopError> {
        // Names that no scenario's traffic uses.
        let token = &hex::encode(Sha256::digest(name))[..16];
        let candidate = self.side(&format!("gate-candidate-{token}"), candidate).await?;
        let current = match against {
            None => None,
            Some(files) => match self.side(&format!("gate-served-{token}"), files).await {
                Ok(side) => Some(side),
                Err(error) => {
                    self.release(&candidate).await;
                    return Err(error);
                }
            },
        };
        let contest = Contest {
            judge: self.judge_side(&candidate),
            candidate,
            current,
        };
        let verdict = judge_by_answers(terms, questions, &contest, cancel, watch).await;
        self.release(&contest.candidate).await;
        if let Some(current) = &contest.current {
            self.release(current).await;
        }
        verdict.map_err(|error| super::judge::refused(&error, cancel))
    }

    /// Who answers the questions of `judge` checkers.
    fn judge_side(&self, like: &Side) -> Option<Side> {
        self.judge.as_ref().map(|engine| Side {
            engine: Arc::clone(engine),
            ..like.clone()
        })
    }
}

/// A trainer that shares the served model's memory where it can.
#[cfg(feature = "torch")]
fn trainer(answering: Option<&Answering>) -> Trainer {
    match answering.and_then(|answering| answering.torch.as_ref()) {
        Some(torch) => Trainer::with_base(torch.options().model_dir.clone(), torch.base_model()),
        None => Trainer::new(),
    }
}

#[cfg(not(feature = "torch"))]
fn trainer(_: Option<&Answering>) -> Trainer {
    Trainer::new()
}
