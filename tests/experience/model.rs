//! The store against a model of it: whatever the order of appends, retries, conflicts, sweeps, consumption and reopening,
//! both give the same answers.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use reef::domain::BatchId;
use reef::experience::{Consumption, ErrorClass, Experience, Insertion, Retention};

use super::{all, exchange, id, open, report, scenario, store_with};

#[derive(Debug, Clone)]
enum Event {
    Exchange { slot: u8, text: u8 },
    Report { slot: u8, score: u8, references: Vec<u8> },
    Sweep,
    Consume { batch: u8, slots: Vec<u8> },
    Reopen,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..6_u8, 0..2_u8).prop_map(|(slot, text)| Event::Exchange { slot, text }),
        6 => (0..6_u8, 0..2_u8, prop::collection::vec(0..8_u8, 0..3))
            .prop_map(|(slot, score, references)| Event::Report { slot, score, references }),
        1 => Just(Event::Sweep),
        2 => (0..3_u8, prop::collection::vec(0..6_u8, 0..4))
            .prop_map(|(batch, slots)| Event::Consume { batch, slots }),
        1 => Just(Event::Reopen),
    ]
}

#[derive(Debug, PartialEq, Clone)]
enum Content {
    Exchange(u8),
    Report(u8, Vec<String>),
}

#[derive(Debug, Default)]
struct Model {
    /// Id to content and place in the order of arrival.
    records: BTreeMap<String, (Content, usize)>,
    swept: BTreeSet<String>,
    consumed: BTreeMap<String, u8>,
}

/// What an operation should give.
#[derive(Debug, PartialEq)]
enum Answer {
    Stored(Insertion),
    Refused(ErrorClass),
}

impl Model {
    fn append(&mut self, record_id: &str, content: Content, allowed: bool) -> Answer {
        if let Some((stored, _)) = self.records.get(record_id) {
            return if *stored == content {
                Answer::Stored(Insertion::AlreadyStored)
            } else {
                Answer::Refused(ErrorClass::Conflict)
            };
        }
        if !allowed {
            return Answer::Refused(ErrorClass::Refused);
        }
        let place = self.records.len();
        self.records.insert(record_id.to_owned(), (content, place));
        Answer::Stored(Insertion::Inserted)
    }

    fn may_cite(&self, references: &[String]) -> bool {
        let unique: BTreeSet<_> = references.iter().collect();
        unique.len() == references.len()
            && references
                .iter()
                .all(|r| matches!(self.records.get(r), Some((Content::Exchange(_), _))))
    }
}

async fn step(store: &mut Option<Experience>, dir: &std::path::Path, model: &mut Model, event: Event) {
    let live = store.clone().unwrap();
    match event {
        Event::Exchange { slot, text } => {
            let record_id = format!("e{slot}");
            let want = model.append(&record_id, Content::Exchange(text), true);
            let given = exchange("a", &record_id, &format!("text {text}"));
            assert_eq!(answer(live.append_exchange(given).await), want);
        }
        Event::Report {
            slot,
            score,
            references,
        } => {
            // Slots 6 and 7 name a report and nothing at all.
            let names: Vec<String> = references
                .iter()
                .map(|r| match r {
                    6 => "p0".to_owned(),
                    7 => "nowhere".to_owned(),
                    other => format!("e{other}"),
                })
                .collect();
            let allowed = model.may_cite(&names);
            let record_id = format!("p{slot}");
            let duplicate = names.iter().collect::<BTreeSet<_>>().len() != names.len();
            let want = if duplicate {
                // Never storable, whatever the id holds.
                Answer::Refused(ErrorClass::Refused)
            } else {
                model.append(&record_id, Content::Report(score, names.clone()), allowed)
            };
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let given = report("a", &record_id, f64::from(score), &names);
            assert_eq!(answer(live.append_report(given).await), want);
        }
        Event::Sweep => {
            let retention = Retention {
                max_bytes: Some(0),
                max_age: None,
            };
            let pruned = live.prune(retention).await.unwrap();
            let before = model.swept.len();
            model.swept = model.records.keys().cloned().collect();
            assert_eq!(pruned.records as usize, model.swept.len() - before);
        }
        Event::Consume { batch, slots } => {
            let names: Vec<String> = slots.iter().map(|slot| format!("e{slot}")).collect();
            let allowed = names
                .iter()
                .all(|n| model.records.contains_key(n) && model.consumed.get(n).is_none_or(|b| *b == batch));
            let fresh: BTreeSet<_> = names.iter().filter(|n| !model.consumed.contains_key(*n)).collect();
            let result = live
                .consume(Consumption {
                    scenario: scenario("a"),
                    consumer: "policy".to_owned(),
                    batch: BatchId::new(format!("b{batch}")).unwrap(),
                    step: None,
                    outcome: "committed".to_owned(),
                    records: names.iter().map(|n| id(n)).collect(),
                })
                .await;
            assert_eq!(
                result.as_ref().ok().copied(),
                allowed.then_some(fresh.len()),
                "{result:?}"
            );
            if allowed {
                let fresh: Vec<String> = fresh.into_iter().cloned().collect();
                model.consumed.extend(fresh.into_iter().map(|n| (n, batch)));
            }
        }
        Event::Reopen => {
            drop(live);
            *store = None;
            *store = Some(open(dir));
        }
    }
}

fn answer(result: Result<reef::experience::Appended, reef::experience::StoreError>) -> Answer {
    match result {
        Ok(appended) => Answer::Stored(appended.outcome),
        Err(error) => Answer::Refused(error.class()),
    }
}

fn compare(store: &Experience, model: &Model) {
    let rows = all(store);
    let mut wanted: Vec<_> = model.records.iter().collect();
    wanted.sort_by_key(|(_, (_, place))| *place);
    assert_eq!(
        rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(),
        wanted
            .iter()
            .map(|(record_id, _)| record_id.as_str())
            .collect::<Vec<_>>()
    );
    for row in &rows {
        assert_eq!(
            row.pruned_us.is_some(),
            model.swept.contains(row.id.as_str()),
            "{}",
            row.id
        );
        if let (Content::Report(_, references), _) = &model.records[row.id.as_str()] {
            assert_eq!(
                &row.references.iter().map(ToString::to_string).collect::<Vec<_>>(),
                references
            );
        }
    }
    let stats = &store.stats(None).unwrap()[&scenario("a")];
    let n_exchanges = model
        .records
        .values()
        .filter(|(c, _)| matches!(c, Content::Exchange(_)))
        .count();
    assert_eq!(stats.exchanges as usize, n_exchanges);
    assert_eq!((stats.exchanges + stats.reports) as usize, rows.len());
    assert_eq!(stats.consumed as usize, model.consumed.len());
    assert_eq!(stats.pruned_records as usize, model.swept.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn the_store_behaves_as_its_model(events in prop::collection::vec(any_event(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut model = Model::default();
        let mut store = Some(runtime.block_on(store_with(dir.path(), &["a"])));
        for event in events {
            runtime.block_on(step(&mut store, dir.path(), &mut model, event));
        }
        compare(store.as_ref().unwrap(), &model);
    }
}
