//! Load on the experience store alone: `store_bench FILE [CONNECTIONS] [SECONDS] [BODY_BYTES]`. Each connection appends
//! one exchange after another and waits for each to be durable, as the gateway does. Prints a line of figures.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reef::domain::{NewExchange, Route, ScenarioName, Tags, Timings, TrainingMode, Turn};
use reef::experience::{Experience, StoreOptions};
use reef::sys::{clock, random};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let file: PathBuf = args
        .next()
        .ok_or("usage: store_bench FILE [CONNECTIONS] [SECONDS] [BODY_BYTES]")?
        .into();
    let mut number = |default: u64| -> Result<u64, Failure> { args.next().map_or(Ok(default), |a| Ok(a.parse()?)) };
    let (connections, seconds, size) = (number(64)?, number(5)?, number(1024)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(load(
        &file,
        connections,
        Duration::from_secs(seconds),
        usize::try_from(size)?,
    ))
}

async fn load(file: &Path, connections: u64, time: Duration, size: usize) -> Result<(), Failure> {
    let store = Experience::open(file, StoreOptions::default())?;
    let scenario = ScenarioName::new("bench")?;
    store
        .scenario_create(scenario.clone(), TrainingMode::Auto, serde_json::Map::new())
        .await?;
    // Words rather than one letter: about as compressible as text is.
    let words: String = (0_u64..)
        .map(|i| format!("{:x} ", i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44))
        .take(size / 6 + 1)
        .collect();
    let began = Instant::now();
    let lanes: Vec<_> = (0..connections)
        .map(|_| {
            let (store, scenario, words) = (store.clone(), scenario.clone(), words.clone());
            tokio::spawn(async move {
                let mut waits = Vec::new();
                while began.elapsed() < time {
                    let exchange = NewExchange {
                        id: random::record_id(),
                        scenario: scenario.clone(),
                        route: Some(Route::ChatCompletions),
                        release: None,
                        request: format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{words}\"}}]}}").into(),
                        response: format!("{{\"choices\":[{{\"message\":{{\"content\":\"{words}\"}}}}]}}").into(),
                        streamed: false,
                        status: 200,
                        turn: Turn {
                            text: words.clone(),
                            ..Turn::default()
                        },
                        tags: Tags::new(),
                        timings: Timings {
                            started_us: clock::now_us(),
                            ..Timings::default()
                        },
                        capture: None,
                    };
                    let asked = Instant::now();
                    store.append_exchange(exchange).await?;
                    waits.push(asked.elapsed());
                }
                Ok::<_, Failure>(waits)
            })
        })
        .collect();
    let mut waits = Vec::new();
    for lane in lanes {
        waits.extend(lane.await??);
    }
    let took = began.elapsed();
    waits.sort_unstable();
    let at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize].as_micros();
    let metrics = store.metrics();
    let line = format!(
        "connections {connections}  body {size} B  {:.0}/s  wait p50 {} us  p99 {} us  p99.9 {} us  max {} us  writes/commit {:.1}  commit {:.0} us\n",
        waits.len() as f64 / took.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        metrics.writes as f64 / metrics.commits as f64,
        metrics.commit_us as f64 / metrics.commits as f64,
    );
    use std::io::Write;
    std::io::stdout().write_all(line.as_bytes())?;
    Ok(())
}
