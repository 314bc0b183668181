//! The two helper processes: the stage, which builds the root and moves files, and process 1 inside.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use rustix::thread::UnshareFlags;

use super::copy::{Files, place};
use super::namespaces::{EPISODE, add_writable, arrange, build_root, enter, move_into, unshare};
use super::phase::{self, User};
use super::population::Whom;
use super::spec::{Isolation, Job, Order, Outcome, PhaseOutcome, Reply};
use super::{COMMAND, bridge};

/// Runs the job described by one line of `input` and writes the result to `output`. The end of `input` means that nobody
/// waits for it, and ends everything.
pub fn serve_stage(mut input: impl BufRead + Send + 'static, mut output: impl Write) -> io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let reply = match serde_json::from_str::<Job>(&line) {
        Ok(job) => run(&job, input),
        Err(error) => Reply::Failed(format!("the job cannot be read: {error}")),
    };
    serde_json::to_writer(&mut output, &reply)?;
    output.flush()
}

fn run(job: &Job, input: impl BufRead + Send + 'static) -> Reply {
    let result = match job.isolation {
        Isolation::Namespaces => match enter() {
            Ok(user) => isolated(job, user, input),
            Err(error) => return Reply::Unavailable(error.to_string()),
        },
        Isolation::None => beside(job, input),
    };
    match result {
        Ok(outcome) => Reply::Done(outcome),
        Err(error) => Reply::Failed(error.to_string()),
    }
}

/// Dies when the pipe to whoever asked is closed.
fn die_with(mut input: impl Read + Send + 'static) {
    std::thread::spawn(move || {
        let mut byte = [0; 64];
        while matches!(input.read(&mut byte), Ok(n) if n > 0) {}
        let _dying = kill_process(getpid(), Signal::KILL);
    });
}

fn named<T>(what: &str, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
}

fn isolated(job: &Job, user: Option<u32>, input: impl BufRead + Send + 'static) -> io::Result<Outcome> {
    let root = named(
        "building the root",
        build_root(&job.scratch, &job.read_only, &job.limits, user),
    )?;
    named("the loopback interface", bridge::raise_loopback())?;
    if let Some(wanted) = &job.bridge {
        named("the bridge", bridge::serve(wanted.port, wanted.socket.clone()))?;
    }
    die_with(input);
    let files = named("the root", Files::open(&root, user, false))?;
    let mut init = named("process 1", Init::start(&root))?;
    let mut outcome = Outcome {
        phases: Vec::new(),
        not_kept: Vec::new(),
    };
    let mut writable = Vec::new();
    for phase in &job.phases {
        for directory in &phase.directories {
            named(directory, files.fresh_directory(&place(directory, EPISODE)?))?;
        }
        for input in &phase.inputs {
            named(&input.to, files.copy_in(&input.from, &place(&input.to, EPISODE)?))?;
        }
        add_writable(&mut writable, phase)?;
        let order = Order {
            phase: phase.clone(),
            limits: job.limits.clone(),
            user,
            writable: writable.clone(),
            shown: job.read_only.clone(),
        };
        let done = init.run(&order)?;
        let goes_on = phase.goes_on(done.ended);
        outcome.phases.push(done);
        if !goes_on {
            break;
        }
    }
    init.end();
    keep(job, &files, EPISODE, &mut outcome);
    Ok(outcome)
}

fn keep(job: &Job, files: &Files, relative_to: &str, outcome: &mut Outcome) {
    for output in &job.outputs {
        match place(&output.from, relative_to) {
            Ok(from) => files.copy_out(&from, &output.to, job.limits.disk_bytes, &mut outcome.not_kept),
            Err(error) => outcome.not_kept.push(error.to_string()),
        }
    }
}

/// Without namespaces: the same programs on a directory of this machine.
fn beside(job: &Job, input: impl BufRead + Send + 'static) -> io::Result<Outcome> {
    // Orphaned grandchildren come to this process instead of escaping to the system's first.
    rustix::process::set_child_subreaper(Some(getpid()))?;
    let root = job.scratch.join("root");
    std::fs::create_dir_all(&root)?;
    die_with(input);
    let files = Files::open(&root, None, true)?;
    let within = |text: &str| {
        if text.starts_with('/') {
            return Err(io::Error::other(format!("{text} exists only inside namespaces")));
        }
        place(text, "")
    };
    let mut outcome = Outcome {
        phases: Vec::new(),
        not_kept: Vec::new(),
    };
    for phase in &job.phases {
        for directory in &phase.directories {
            named(directory, files.fresh_directory(&within(directory)?))?;
        }
        for input in &phase.inputs {
            named(&input.to, files.copy_in(&input.from, &within(&input.to)?))?;
        }
        let inside = within(&phase.directory)?;
        let directory = root.join(inside.strip_prefix("/").unwrap_or(&inside));
        let text = root.to_string_lossy();
        let done = phase::run(phase, &directory, &text, &job.limits, User::Same, Whom::Descendants);
        let goes_on = phase.goes_on(done.ended);
        outcome.phases.push(done);
        if !goes_on {
            break;
        }
    }
    keep(job, &files, "", &mut outcome);
    Ok(outcome)
}

/// Process 1 inside, seen from the stage.
struct Init {
    child: Child,
    orders: Option<ChildStdin>,
    results: BufReader<ChildStdout>,
}

impl Init {
    fn start(root: &Path) -> io::Result<Self> {
        let root = root.to_path_buf();
        // The children of a thread that left for a new process namespace are born there, but such a thread can start no
        // threads any more: it is one of its own, and ends at once.
        let start = move || {
            unshare(UnshareFlags::NEWPID)?;
            Command::new("/proc/self/exe")
                .arg(COMMAND)
                .arg("--init")
                .arg(root)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        };
        let mut child = std::thread::spawn(start)
            .join()
            .map_err(|_| io::Error::other("process 1 could not be started"))??;
        let (Some(orders), Some(results)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("process 1 has no pipes"));
        };
        Ok(Self {
            child,
            orders: Some(orders),
            results: BufReader::new(results),
        })
    }

    fn run(&mut self, order: &Order) -> io::Result<PhaseOutcome> {
        let orders = self
            .orders
            .as_mut()
            .ok_or_else(|| io::Error::other("process 1 was ended"))?;
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        orders.write_all(line.as_bytes())?;
        orders.flush()?;
        let mut said = String::new();
        self.results.read_line(&mut said)?;
        if said.is_empty() {
            return Err(io::Error::other("process 1 died"));
        }
        serde_json::from_str::<Result<PhaseOutcome, String>>(&said)?.map_err(io::Error::other)
    }

    fn end(&mut self) {
        self.orders = None;
        for _ in 0..500 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // The namespace and everything in it dies with its process 1.
        let _killed = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Process 1 inside: takes orders, one a line, and answers each with its outcome. The end of `input` ends everything, also
/// in the middle of an order.
pub fn serve_init(root: &Path, input: impl BufRead + Send + 'static, mut output: impl Write) -> io::Result<()> {
    let moved = named("entering the root", move_into(root)).map_err(|error| error.to_string());
    let (send, orders) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in input.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
        leave();
    });
    while let Ok(line) = orders.recv() {
        let answer: Result<PhaseOutcome, String> = match (&moved, serde_json::from_str::<Order>(&line)) {
            (Err(error), _) => Err(error.clone()),
            (Ok(()), Err(error)) => Err(error.to_string()),
            (Ok(()), Ok(order)) => follow(order),
        };
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

#[allow(
    clippy::exit,
    reason = "process 1 of a namespace cannot be killed from inside; its end kills all the others"
)]
fn leave() -> ! {
    std::process::exit(0)
}

/// Each phase has its own view of the files, which a thread can have and which ends with it.
fn follow(order: Order) -> Result<PhaseOutcome, String> {
    let work = move || -> io::Result<PhaseOutcome> {
        named("arranging the files", arrange(&order))?;
        let directory = place(&order.phase.directory, EPISODE)?;
        let user = order.user.map_or(User::Inner, User::Id);
        Ok(phase::run(
            &order.phase,
            &directory,
            EPISODE,
            &order.limits,
            user,
            Whom::Namespace,
        ))
    };
    std::thread::spawn(work)
        .join()
        .map_err(|_| "the thread of the phase broke down".to_owned())?
        .map_err(|error| error.to_string())
}
