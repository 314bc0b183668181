//! The two helper processes: the stage, which builds the root and moves files, and process 1 inside.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use rustix::thread::UnshareFlags;

use super::control::Ground;
use super::copy::{Files, place};
use super::namespaces::{EPISODE, add_writable, arrange, enter, move_into, unshare};
use super::phase::{self, Program, User};
use super::population::Whom;
use super::root::build_root;
use super::spec::{Done, Isolation, Job, Order, PhaseOutcome, Reply, Task};
use super::{COMMAND, bridge};
use crate::sys::launch::Launch;
use crate::sys::task;

/// Runs the job described by one line of `input` and writes the result to `output`. The end of `input` means that nobody
/// waits for it, and ends everything.
pub fn serve_stage(mut input: impl BufRead + Send + 'static, mut output: impl Write) -> io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let reply = match serde_json::from_str::<Task>(&line) {
        Ok(task) => run(&task, input),
        Err(error) => Reply::Failed(format!("the job cannot be read: {error}")),
    };
    serde_json::to_writer(&mut output, &reply)?;
    output.flush()
}

fn run(Task { job, group }: &Task, input: impl BufRead + Send + 'static) -> Reply {
    let result = match job.isolation {
        Isolation::Namespaces => match enter() {
            Ok(user) => isolated(job, group, user, input),
            Err(error) => return Reply::Unavailable(why(&error)),
        },
        Isolation::None => beside(job, group, input),
    };
    match result {
        Ok(done) => Reply::Done(done),
        Err(error) => Reply::Failed(error.to_string()),
    }
}

/// Why there are no namespaces. AppArmor grants a user namespace and then refuses everything in it.
fn why(error: &io::Error) -> String {
    let restricted = std::fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    if restricted.is_ok_and(|text| text.trim() == "1") && !rustix::process::getuid().is_root() {
        format!("AppArmor keeps user namespaces from programs without a profile that allows them ({error})")
    } else {
        error.to_string()
    }
}

/// Dies when the pipe to whoever asked is closed.
fn die_with(mut input: impl Read + Send + 'static) -> io::Result<()> {
    let _waiting = task::thread("reef-parent", move || {
        let mut byte = [0; 64];
        while matches!(input.read(&mut byte), Ok(n) if n > 0) {}
        let _dying = kill_process(getpid(), Signal::KILL);
    })?;
    Ok(())
}

fn named<T>(what: &str, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
}

fn isolated(job: &Job, group: &[PathBuf], user: Option<u32>, input: impl BufRead + Send + 'static) -> io::Result<Done> {
    let root = named("building the root", build_root(job, user))?;
    named("the loopback interface", bridge::raise_loopback())?;
    if let Some(wanted) = &job.bridge {
        named("the bridge", bridge::serve(wanted.port, wanted.socket.clone()))?;
    }
    die_with(input)?;
    let files = named("the root", Files::open(&root, user, false))?;
    let mut init = named("process 1", Init::start(&root, group))?;
    let mut outcome = Done::default();
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

fn keep(job: &Job, files: &Files, relative_to: &str, outcome: &mut Done) {
    for output in &job.outputs {
        match place(&output.from, relative_to) {
            Ok(from) => files.copy_out(&from, &output.to, job.limits.disk_bytes, &mut outcome.not_kept),
            Err(error) => outcome.not_kept.push(error.to_string()),
        }
    }
}

/// Without namespaces: the same programs on a directory of this machine.
fn beside(job: &Job, group: &[PathBuf], input: impl BufRead + Send + 'static) -> io::Result<Done> {
    let ground = Ground::open(group).map_err(|error| error.to_string());
    // Orphaned grandchildren come to this process instead of escaping to the system's first.
    rustix::process::set_child_subreaper(Some(getpid()))?;
    let root = job.scratch.join("root");
    std::fs::create_dir_all(&root)?;
    die_with(input)?;
    let files = Files::open(&root, None, true)?;
    let within = |text: &str| {
        if text.starts_with('/') {
            return Err(io::Error::other(format!("{text} exists only inside namespaces")));
        }
        place(text, "")
    };
    let mut outcome = Done::default();
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
        let program = Program {
            phase,
            directory: &directory,
            root: &text,
            limits: &job.limits,
            user: User::Same,
            whom: Whom::Descendants,
            ground: &ground,
        };
        let done = program.run();
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
    fn start(root: &Path, group: &[PathBuf]) -> io::Result<Self> {
        let (root, group) = (root.to_path_buf(), group.to_vec());
        // The children of a thread that left for a new process namespace are born there, but such a thread can start no
        // threads any more: it is one of its own, and ends at once.
        let start = move || {
            unshare(UnshareFlags::NEWPID)?;
            Command::new("/proc/self/exe")
                .arg(COMMAND)
                .arg("--init")
                .arg(root)
                .args(group.iter().flat_map(|dir| [OsStr::new("--group"), dir.as_os_str()]))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .launch()
        };
        let mut child = task::thread("reef-init", start)?.join().map_err(io::Error::other)??;
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
/// in the middle of an order. `group` is where the control group of the programs is.
pub fn serve_init(
    root: &Path,
    group: &[PathBuf],
    input: impl BufRead + Send + 'static,
    mut output: impl Write,
) -> io::Result<()> {
    // Its files are out of sight from the new root.
    let ground = Arc::new(Ground::open(group).map_err(|error| error.to_string()));
    let last = Arc::clone(&ground);
    let moved = named("entering the root", move_into(root)).map_err(|error| error.to_string());
    let (send, orders) = std::sync::mpsc::channel();
    let _reading = task::thread("reef-orders", move || {
        for line in input.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
        leave(&last);
    })?;
    let mut served = Ok(());
    while served.is_ok() {
        let Ok(line) = orders.recv() else { break };
        let answer: Result<PhaseOutcome, String> = match (&moved, serde_json::from_str::<Order>(&line)) {
            (Err(error), _) => Err(error.clone()),
            (Ok(()), Err(error)) => Err(error.to_string()),
            (Ok(()), Ok(order)) => follow(order, Arc::clone(&ground)),
        };
        served = tell(&mut output, &answer);
    }
    // The other thread may be about it, and dies with this one.
    if let Ok(ground) = &*ground {
        ground.remove();
    }
    served
}

fn tell(output: &mut impl Write, answer: &Result<PhaseOutcome, String>) -> io::Result<()> {
    serde_json::to_writer(&mut *output, answer)?;
    output.write_all(b"\n")?;
    output.flush()
}

#[allow(
    clippy::exit,
    reason = "process 1 of a namespace cannot be killed from inside; its end kills all the others"
)]
fn leave(ground: &Result<Ground, String>) -> ! {
    if let Ok(ground) = ground {
        // Whoever made the group may have been killed.
        phase::kill_all();
        ground.remove();
    }
    std::process::exit(0)
}

/// Each phase has its own view of the files, which a thread can have and which ends with it.
fn follow(order: Order, ground: Arc<Result<Ground, String>>) -> Result<PhaseOutcome, String> {
    let work = move || -> io::Result<PhaseOutcome> {
        named("arranging the files", arrange(&order))?;
        let directory = place(&order.phase.directory, EPISODE)?;
        let user = order.user.map_or(User::Inner, User::Id);
        let program = Program {
            phase: &order.phase,
            directory: &directory,
            root: EPISODE,
            limits: &order.limits,
            user,
            whom: Whom::Namespace,
            ground: &ground,
        };
        Ok(program.run())
    };
    let phase = task::thread("reef-phase", work).map_err(|error| error.to_string())?;
    phase
        .join()
        .map_err(|lost| lost.to_string())?
        .map_err(|error| error.to_string())
}
