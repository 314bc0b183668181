//! What the overview shows, as plain lines for a log or a script.

use super::snapshot::{ScenarioFacts, Snapshot};
use super::text;

/// One line for every scenario that changed or went since the look before; all of them at the first look. The service
/// has a line of its own.
pub fn plain_lines(now: &Snapshot, before: Option<&Snapshot>) -> Vec<String> {
    let mut lines = Vec::new();
    let service = service(now);
    if before.is_none_or(|before| self::service(before) != service) {
        lines.push(format!("{} {service}", text::clock(now.at_us)));
    }
    for facts in &now.scenarios {
        let was = before.and_then(|before| before.scenarios.iter().find(|other| other.name == facts.name));
        if was == Some(facts) {
            continue;
        }
        let seconds = before.map_or(0.0, |before| (now.at_us - before.at_us) as f64 / 1e6);
        let rate = was.filter(|_| seconds > 0.0).map_or(String::new(), |was| {
            let more = facts.exchanges.saturating_sub(was.exchanges);
            format!(" (+{}/s)", text::figure_short(more as f64 / seconds))
        });
        lines.push(format!("{} {}", text::clock(now.at_us), scenario(facts, &rate)));
    }
    for was in before.map(|before| before.scenarios.as_slice()).unwrap_or_default() {
        if !now.scenarios.iter().any(|facts| facts.name == was.name) {
            lines.push(format!("{} {} is gone", text::clock(now.at_us), text::clean(&was.name)));
        }
    }
    if now.scenarios.is_empty() && before.is_none() {
        lines.push(format!("{} no scenario yet", text::clock(now.at_us)));
    }
    lines
}

fn scenario(facts: &ScenarioFacts, rate: &str) -> String {
    let mut words = vec![
        text::clean(&facts.name),
        format!(
            "release={}",
            facts.release.as_deref().map_or("-".to_owned(), text::short)
        ),
        format!("mode={}", facts.mode),
        match (facts.step, facts.outcome.as_deref()) {
            (Some(step), Some(outcome)) => format!("step={step}:{outcome}"),
            _ => "step=-".to_owned(),
        },
    ];
    if !facts.phase.is_empty() {
        let progress = facts
            .progress
            .map_or(String::new(), |share| format!(":{:.0}%", share * 100.0));
        words.push(format!("loop={}{progress}", facts.phase));
    }
    if let Some(pending) = facts.pending {
        words.push(format!("queue={pending}"));
    }
    words.push(format!("exchanges={}{rate}", facts.exchanges));
    words.push(format!("reports={}", facts.reports));
    if let Some(score) = facts.mean_score {
        words.push(format!("score={}", text::figure(score)));
    }
    if let Some(reward) = facts.rewards.last() {
        words.push(format!("reward={}", text::figure(*reward)));
    }
    if let Some(trouble) = &facts.trouble {
        words.push(format!("trouble={:?}", text::clean(trouble)));
    }
    words.join(" ")
}

fn service(snapshot: &Snapshot) -> String {
    let trouble = snapshot
        .store
        .error
        .as_ref()
        .map_or(String::new(), |error| format!(" store={:?}", text::clean(error)));
    match &snapshot.service {
        None => format!(
            "service not running, files in {}{trouble}",
            text::clean(&snapshot.source)
        ),
        Some(service) => {
            let state = if service.live.is_some() {
                "answers"
            } else {
                "does not answer"
            };
            format!("service {} {state}{trouble}", text::clean(&service.url))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dash::sample;

    #[test]
    fn the_first_look_tells_everything_and_later_ones_what_changed() {
        let first = sample::snapshot();
        let lines = plain_lines(&first, None);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[1].starts_with(
            "15:09:26 support-tickets release=9bb57922dc1a mode=auto step=23:held loop=training:62% queue=17"
        ));
        assert!(
            lines[3].ends_with("trouble=\"the trainer cannot be started: no such file\""),
            "{}",
            lines[3]
        );
        assert!(plain_lines(&first, Some(&first)).is_empty());
        let mut next = sample::snapshot();
        next.at_us += 2_000_000;
        next.scenarios[1].exchanges += 9;
        let lines = plain_lines(&next, Some(&first));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("exchanges=1922 (+4.5/s)"), "{lines:?}");
        next.scenarios.remove(2);
        assert_eq!(
            plain_lines(&next, Some(&first)).last().unwrap(),
            "15:09:28 triage is gone"
        );
        next.service = None;
        assert!(plain_lines(&next, Some(&first))[0].contains("service not running"));
    }
}
