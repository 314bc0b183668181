//! The providers: whether they can be reached, and what they say of the credential.

use super::{Finding, Health, bad, good, reach, warning};
use crate::cli::{CliError, Context, engines, format};
use crate::config::{EngineKind, Settings};
use crate::engine::upstream::Hello;
use crate::experience::{Experience, InterruptionReason, StoreOptions};

const CHECK: &str = "upstream";
const KEY: &str = "inference.upstream-api-key";

/// Whether something listens, and what it says when asked for its models, which costs nothing.
pub(super) fn ask(context: &Context, settings: &Settings) -> Result<Vec<Finding>, CliError> {
    let inference = &settings.inference;
    let key = if inference.upstream_url.is_some() {
        "inference.upstream-url"
    } else {
        "inference.url"
    };
    let Some(url) = inference
        .provider_url()
        .filter(|_| inference.engine() == EngineKind::Upstream)
    else {
        return Ok(Vec::new());
    };
    let fix = format!("is the provider running there? correct {key} otherwise");
    let Some(found) = reach::reachable(context, settings, CHECK, url, &fix) else {
        return Ok(Vec::new());
    };
    let placed = |found: Finding| Finding {
        detail: settings.fault(key, found.detail).to_string(),
        ..found
    };
    if found.health != Health::Good {
        return Ok(vec![placed(found)]);
    }
    // What is wrong with the settings themselves was told before.
    let Ok(upstream) = engines::upstream(settings) else {
        return Ok(vec![found]);
    };
    let answers = context.block_on(async { Ok(upstream.hello().await) })?;
    let mut findings = Vec::new();
    for (at, answer) in answers.into_iter().enumerate() {
        findings.extend(match answer {
            Some(answer) => judge(settings, at, &answer),
            // That the first one is reached was seen; another one is needed only where it is not.
            None => at.checked_sub(1).and_then(|at| fallback(context, settings, at)),
        });
    }
    if findings.is_empty() {
        findings.push(found);
    }
    Ok(findings)
}

/// A fallback that gave no answer, where it cannot be reached either.
fn fallback(context: &Context, settings: &Settings, at: usize) -> Option<Finding> {
    let url = settings.fallbacks().ok()?.into_iter().nth(at)?.url?;
    let key = format!("inference.fallbacks[{at}].url");
    let fix = format!("is it running there? correct {key} otherwise");
    let found = reach::reachable(context, settings, CHECK, &url, &fix)?;
    (found.health != Health::Good).then(|| {
        reach::lenient(Finding {
            detail: settings.fault(&key, found.detail).to_string(),
            ..found
        })
    })
}

/// What a provider said, where it is worth saying.
fn judge(settings: &Settings, at: usize, answer: &Hello) -> Option<Finding> {
    let own = at.checked_sub(1);
    let (key, model, given) = match own {
        None => (
            KEY.to_owned(),
            settings.inference.upstream_model.clone(),
            settings.inference.upstream_api_key.is_some(),
        ),
        Some(at) => {
            let fallback = settings.fallbacks().ok()?.into_iter().nth(at)?;
            let given = fallback.api_key.is_some() || fallback.api_key_env.is_some();
            (format!("inference.fallbacks[{at}].api-key"), fallback.model, given)
        }
    };
    let status = answer.status;
    let said = |detail: String| settings.fault(&key, detail).to_string();
    match status {
        401 | 403 if given => Some(bad(
            CHECK,
            said(format!("the provider refuses the credential: it answers {status}")),
            "correct the credential; requests get this answer too",
        )),
        401 | 403 => Some(bad(
            CHECK,
            said(format!(
                "the provider wants a credential and none is set: it answers {status}"
            )),
            "set the credential; requests get this answer too",
        )),
        429 => Some(warning(
            CHECK,
            said("the provider limits this credential now: it answers 429".to_owned()),
            "wait, or raise the limit there; requests get this answer too",
        )),
        _ => {
            let model = model.filter(|model| !answer.models.is_empty() && !answer.models.contains(model))?;
            let listed: Vec<&str> = answer.models.iter().take(5).map(String::as_str).collect();
            let model_key = own.map_or_else(
                || "inference.upstream-model".to_owned(),
                |at| format!("inference.fallbacks[{at}].model"),
            );
            Some(warning(
                CHECK,
                settings
                    .fault(&model_key, format!("the provider does not list the model {model}"))
                    .to_string(),
                format!("it lists {}", listed.join(", ")),
            ))
        }
    }
}

/// What providers said to requests since the last answer, as the store remembers it.
pub(super) fn refusals(settings: &Settings) -> Option<Finding> {
    let options = StoreOptions {
        readers: 1,
        ..StoreOptions::default()
    };
    let store = Experience::open_read_only(&settings.storage.experience_db(), options).ok()?;
    let (reason, times, last_us) = store.refusals_since_the_last_answer().ok()??;
    let when = format::moment(last_us);
    let check = "answers";
    Some(if reason == InterruptionReason::UpstreamDenied {
        bad(
            check,
            format!("the provider refused the credential for the last {times} requests, the newest at {when} UTC"),
            format!("correct {KEY}; reef logs --level warn has each"),
        )
    } else {
        warning(
            check,
            format!("the provider limited the last {times} requests, the newest at {when} UTC"),
            "wait, or raise the limit there; inference.fallbacks names further providers",
        )
    })
}

/// What answers, where the command line of a running service says it and no file does.
pub(super) fn of_the_service(url: &str, pid: u32) -> Finding {
    good(
        "engine",
        format!(
            "the service at {url} (process {pid}) was started with its own flags; what they name is not checked here"
        ),
    )
}
