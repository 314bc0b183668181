//! From a sealed batch to what the step will learn: advantages per token, or a reason to learn nothing. A pure function
//! of the whole batch; a batch without signal is skipped by name, never trained in silence.

use std::collections::BTreeMap;

use super::objective::advantage;
use super::objective::{AdvantageSettings, ObjectiveSettings};
use super::{TrainBatch, TrainError};

/// What to do with a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Signal {
    /// Train these rows.
    Train(Prepared),
    /// Nothing can be learnt from it.
    Skip(Skip),
}

/// Why a batch teaches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// It has no rows.
    EmptyBatch,
    /// Every comparison set has a single row or a single reward value.
    ZeroVariance,
    /// The gradient was not finite; nothing was changed.
    NotFinite,
}

impl Skip {
    /// The reason in a sentence.
    pub fn reason(self) -> &'static str {
        match self {
            Self::EmptyBatch => "the batch has no rows",
            Self::ZeroVariance => "all rewards that are compared are equal, so there is nothing to learn from",
            Self::NotFinite => "the gradient was not finite; the update was not made",
        }
    }
}

/// Rows to train and their advantages.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Indices of the rows that train, ascending.
    pub rows: Vec<usize>,
    /// For each of them, an advantage per response token; empty where a critic or a reference must speak first.
    pub advantages: Vec<Vec<f64>>,
    /// Mean reward of the batch, if rows have rewards.
    pub reward_mean: Option<f64>,
    /// Comparison sets left out because their rewards are all equal.
    pub uniform_groups: usize,
}

/// Decides what a batch teaches. Values of a critic come later: for `gae` the advantages stay empty here.
pub fn prepare(batch: &TrainBatch, objective: &ObjectiveSettings) -> Result<Signal, TrainError> {
    batch.check()?;
    if batch.rows.is_empty() {
        return Ok(Signal::Skip(Skip::EmptyBatch));
    }
    if objective.needs_rollout_log_probs()
        && let Some(i) = batch.rows.iter().position(|r| r.log_probs.is_none())
    {
        return Err(batch.row_error(
            i,
            "the objective needs the log_probs of the engine that sampled it".into(),
        ));
    }
    let rewards = rewards(batch, objective)?;
    let reward_mean = rewards.as_ref().map(|r| r.iter().sum::<f64>() / r.len() as f64);
    let mut prepared = Prepared {
        rows: (0..batch.rows.len()).collect(),
        advantages: Vec::new(),
        reward_mean,
        uniform_groups: 0,
    };
    let rewards = rewards.unwrap_or_default();
    let per_row = match objective.advantage {
        AdvantageSettings::None => vec![0.0; batch.rows.len()],
        AdvantageSettings::Reward => rewards,
        AdvantageSettings::Gae { .. } => return Ok(Signal::Train(prepared)),
        AdvantageSettings::Batch => {
            if advantage::is_uniform(&rewards) {
                return Ok(Signal::Skip(Skip::ZeroVariance));
            }
            advantage::grpo(&rewards)
        }
        AdvantageSettings::ReinforcePlusPlus { group_baseline, .. } => {
            // Whitening needs two different returns; the token-level part is made in `reinforce_plus_plus`.
            let baselines = if group_baseline {
                group_means(batch, &rewards)?
            } else {
                vec![0.0; rewards.len()]
            };
            let shifted: Vec<f64> = rewards.iter().zip(&baselines).map(|(r, b)| r - b).collect();
            if advantage::is_uniform(&shifted) {
                return Ok(Signal::Skip(Skip::ZeroVariance));
            }
            return Ok(Signal::Train(prepared));
        }
        AdvantageSettings::Grpo
        | AdvantageSettings::MeanCentred
        | AdvantageSettings::Rloo
        | AdvantageSettings::Opo
        | AdvantageSettings::Entropic => {
            let mut out = vec![None; batch.rows.len()];
            for members in groups(batch)?.values() {
                let r: Vec<f64> = members.iter().map(|i| rewards[*i]).collect();
                if advantage::is_uniform(&r) {
                    prepared.uniform_groups += 1;
                    continue;
                }
                for (i, a) in members.iter().zip(group_advantages(batch, objective, members, &r)?) {
                    out[*i] = Some(a);
                }
            }
            prepared.rows.retain(|i| out[*i].is_some());
            if prepared.rows.is_empty() {
                return Ok(Signal::Skip(Skip::ZeroVariance));
            }
            out.into_iter().flatten().collect()
        }
    };
    prepared.advantages = prepared
        .rows
        .iter()
        .zip(per_row)
        .map(|(i, a)| vec![a; batch.rows[*i].response.len()])
        .collect();
    Ok(Signal::Train(prepared))
}

fn rewards(batch: &TrainBatch, objective: &ObjectiveSettings) -> Result<Option<Vec<f64>>, TrainError> {
    if !objective.surrogate.needs_advantage() {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(batch.rows.len());
    for (i, row) in batch.rows.iter().enumerate() {
        out.push(
            row.reward
                .ok_or_else(|| batch.row_error(i, "it has no reward, and an absent reward is not zero".into()))?,
        );
    }
    Ok(Some(out))
}

/// The comparison sets: rows by group key.
pub(crate) fn groups(batch: &TrainBatch) -> Result<BTreeMap<&str, Vec<usize>>, TrainError> {
    let mut sets: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, row) in batch.rows.iter().enumerate() {
        let key = row.group.as_deref().ok_or_else(|| {
            batch.row_error(
                i,
                "it belongs to no comparison set; use advantage.estimator = \"batch\" or \"gae\" for single rollouts"
                    .into(),
            )
        })?;
        sets.entry(key).or_default().push(i);
    }
    Ok(sets)
}

/// The mean reward of each row's comparison set.
pub(crate) fn group_means(batch: &TrainBatch, rewards: &[f64]) -> Result<Vec<f64>, TrainError> {
    let mut out = vec![0.0; rewards.len()];
    for members in groups(batch)?.values() {
        let mean = members.iter().map(|i| rewards[*i]).sum::<f64>() / members.len() as f64;
        for i in members {
            out[*i] = mean;
        }
    }
    Ok(out)
}

fn group_advantages(
    batch: &TrainBatch,
    objective: &ObjectiveSettings,
    members: &[usize],
    rewards: &[f64],
) -> Result<Vec<f64>, TrainError> {
    Ok(match objective.advantage {
        AdvantageSettings::MeanCentred => advantage::mean_centred(rewards),
        AdvantageSettings::Rloo => advantage::rloo(rewards),
        AdvantageSettings::Opo => {
            let lengths: Vec<f64> = members.iter().map(|i| batch.rows[*i].trained_tokens() as f64).collect();
            advantage::opo(rewards, &lengths)
        }
        AdvantageSettings::Entropic => {
            if rewards.len() < 3 {
                let fault = "its comparison set has two rollouts, for which the entropic advantage has no bound; sample three or more";
                return Err(batch.row_error(members[0], fault.into()));
            }
            advantage::entropic(rewards).1
        }
        _ => advantage::grpo(rewards),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::train::batch::tests::{batch, row};

    fn family(name: &str) -> ObjectiveSettings {
        ObjectiveSettings::from_family(name, &Map::new()).unwrap()
    }

    fn graded(groups: &[(&str, f64)]) -> TrainBatch {
        batch(
            groups
                .iter()
                .map(|(group, reward)| {
                    let mut r = row(&[1, 2], &[3, 4, 5], Some(*reward));
                    r.group = Some((*group).to_owned());
                    r
                })
                .collect(),
        )
    }

    fn trained(signal: Signal) -> Prepared {
        match signal {
            Signal::Train(prepared) => prepared,
            Signal::Skip(skip) => panic!("{skip:?}"),
        }
    }

    #[test]
    fn groups_are_compared_within_themselves_and_uniform_ones_left_out() {
        let b = graded(&[("a", 0.0), ("b", 1.0), ("a", 1.0), ("b", 1.0), ("c", 0.5)]);
        let prepared = trained(prepare(&b, &family("dr-grpo")).unwrap());
        assert_eq!(prepared.rows, [0, 2]);
        assert_eq!(prepared.advantages, [vec![-0.5; 3], vec![0.5; 3]]);
        assert_eq!(prepared.uniform_groups, 2);
        assert_eq!(prepared.reward_mean, Some(0.7));
    }

    #[test]
    fn a_batch_without_variance_is_skipped_by_name() {
        let skip = Signal::Skip(Skip::ZeroVariance);
        assert_eq!(
            prepare(&graded(&[("a", 1.0), ("a", 1.0)]), &family("grpo")).unwrap(),
            skip
        );
        assert_eq!(prepare(&graded(&[("a", 1.0)]), &family("grpo")).unwrap(), skip);
        assert_eq!(
            prepare(&graded(&[("a", 1.0), ("b", 1.0)]), &family("reinforce")).unwrap(),
            skip
        );
        assert_eq!(
            prepare(&graded(&[("a", 1.0), ("b", 1.0)]), &family("reinforce++")).unwrap(),
            skip
        );
        assert_eq!(
            prepare(&batch(vec![]), &family("sao")).unwrap(),
            Signal::Skip(Skip::EmptyBatch)
        );
        // A single rollout is enough where a critic judges it.
        assert!(matches!(
            prepare(&graded(&[("a", 1.0)]), &family("sao")).unwrap(),
            Signal::Train(_)
        ));
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut b = graded(&[("a", 0.0), ("a", 1.0)]);
        b.rows[1].reward = None;
        assert!(
            prepare(&b, &family("grpo"))
                .unwrap_err()
                .to_string()
                .contains("not zero")
        );
        let mut b = graded(&[("a", 0.0), ("a", 1.0)]);
        b.rows[1].group = None;
        assert!(
            prepare(&b, &family("grpo"))
                .unwrap_err()
                .to_string()
                .contains("comparison set")
        );
        let mut b = graded(&[("a", 0.0), ("a", 1.0)]);
        for r in &mut b.rows {
            r.log_probs = None;
        }
        assert!(
            prepare(&b, &family("grpo"))
                .unwrap_err()
                .to_string()
                .contains("log_probs")
        );
        let recompute = json!({"old": "recompute"});
        let own = ObjectiveSettings::from_family("grpo", recompute.as_object().unwrap()).unwrap();
        assert!(matches!(prepare(&b, &own).unwrap(), Signal::Train(_)));
        let two = graded(&[("a", 0.0), ("a", 1.0)]);
        assert!(
            prepare(&two, &family("tttd"))
                .unwrap_err()
                .to_string()
                .contains("three or more")
        );
    }
}
