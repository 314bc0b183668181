//! The long part of `scripts/bench/release.sh`: builds a long chain and times reading it. Run by the script alone.

use std::path::PathBuf;
use std::time::Instant;

use reef::domain::TrainingMode;
use reef::experience::StepQuery;
use reef::scenario::catalog_row;

use crate::publish::{candidate, publisher_at};
use crate::rig::{open, scenario};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a bench; scripts/bench/release.sh runs it"]
async fn a_long_chain() {
    let n: usize = std::env::var("REEF_BENCH_RELEASES").map_or(10_000, |n| n.parse().unwrap());
    let dir = PathBuf::from(std::env::var_os("REEF_BENCH_DIR").expect("the script sets REEF_BENCH_DIR"));
    let files = dir.join(".reef");
    std::fs::create_dir_all(&files).unwrap();
    let publisher = publisher_at(&files);
    let s = scenario("s");
    let mut head = publisher.create(&s, TrainingMode::Auto, None).await.unwrap().release_id;
    let tree = dir.join("tree");
    std::fs::create_dir_all(&tree).unwrap();
    let started = Instant::now();
    for i in 0..n {
        std::fs::write(tree.join("AGENTS.md"), format!("rule {i}\n")).unwrap();
        head = publisher
            .publish(candidate(tree.clone(), &head, false))
            .await
            .unwrap()
            .release_id;
    }
    let took = started.elapsed();
    println!(
        "publish {:.2} ms each ({n} releases)",
        took.as_secs_f64() * 1e3 / n as f64
    );
    let best = |what: &str, work: &dyn Fn()| {
        let best = (0..5)
            .map(|_| {
                let started = Instant::now();
                work();
                started.elapsed()
            })
            .min()
            .unwrap();
        println!("{what} {:.2} ms", best.as_secs_f64() * 1e3);
    };
    best("head read", &|| assert!(open(&files).head(&s).unwrap().is_some()));
    best("newest 50 steps", &|| {
        let query = StepQuery {
            limit: Some(50),
            ..StepQuery::default()
        };
        assert_eq!(publisher.experience().steps(&s, &query).unwrap().len(), 50.min(n + 1));
    });
    best("all steps as JSON", &|| {
        let steps = publisher.experience().steps(&s, &StepQuery::default()).unwrap();
        let rows: Vec<_> = steps.iter().map(|step| catalog_row(step, Some(&head))).collect();
        assert!(serde_json::to_string(&rows).unwrap().len() > n);
    });
}
