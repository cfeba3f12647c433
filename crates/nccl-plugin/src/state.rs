//! What lives as long as the library: the policy, the communicators, the settings.
//!
//! NCCL may close the library with the first communicator, at the end, or never. So there is no thread that could outlive its
//! code and nothing that waits for a thread's end; contexts are kept and used again, never freed.

use std::ffi::c_void;
use std::fs::File;
use std::io::Read;
use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::Logger;
use crate::log::{Level, log};
use crate::policy::Policy;

/// `off` leaves everything to NCCL.
const SWITCH: &str = "PACELINE_TUNE";
/// A policy that was learned elsewhere.
const FILE: &str = "PACELINE_TUNE_FILE";
/// `1` records what calls took from the start on.
const PROFILE: &str = "PACELINE_TUNE_PROFILE";
/// No policy is as large.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The policy that decides; null: NCCL does.
static POLICY: AtomicPtr<Policy> = AtomicPtr::new(ptr::null_mut());
static STATE: Mutex<State> = Mutex::new(State { communicators: Vec::new(), prepared: None, retired: Vec::new() });
static SETTINGS: OnceLock<Settings> = OnceLock::new();

struct State {
    /// All that ever were, those that have ended among them.
    communicators: Vec<&'static Communicator>,
    /// Checked, and not active yet.
    prepared: Option<Box<Policy>>,
    /// Not active any more; a call may still read them.
    retired: Vec<Retired>,
}

/// A policy that came from a box.
struct Retired(*mut Policy);

// SAFETY: a policy may be freed by any thread, and only whoever holds the lock has these pointers.
unsafe impl Send for Retired {}

/// What the environment says, read once.
struct Settings {
    off: bool,
    profile: bool,
    /// What there is to say about the policy file.
    message: Option<(Level, String)>,
    said: AtomicBool,
}

/// A communicator of NCCL's, as this plug-in knows it; NCCL keeps its address as the context.
#[derive(Debug)]
pub struct Communicator {
    in_use: AtomicBool,
    ranks: AtomicUsize,
    hosts: AtomicUsize,
    /// Decisions begun and ended: while they are equal nobody reads a policy here.
    started: AtomicU64,
    finished: AtomicU64,
    decided: AtomicU64,
}

/// Notes the end of a decision, however it ends.
struct End<'a>(&'a Communicator);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, SeqCst);
    }
}

impl Communicator {
    /// One that nobody uses; it knows neither ranks nor hosts, so only rules for any hold.
    pub const fn unused() -> Communicator {
        Communicator {
            in_use: AtomicBool::new(false),
            ranks: AtomicUsize::new(0),
            hosts: AtomicUsize::new(0),
            started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            decided: AtomicU64::new(0),
        }
    }

    /// One for NCCL to keep, used again after [`Communicator::close`].
    pub fn open(ranks: usize, hosts: usize) -> &'static Communicator {
        let mut state = state();
        let free = state.communicators.iter().find(|communicator| !communicator.in_use.load(SeqCst)).copied();
        let communicator = free.unwrap_or_else(|| {
            let communicator: &'static Communicator = Box::leak(Box::new(Communicator::unused()));
            state.communicators.push(communicator);
            communicator
        });
        communicator.in_use.store(true, SeqCst);
        communicator.shape(ranks, hosts);
        communicator
    }

    /// Registers one that is not NCCL's to keep.
    pub fn register(&'static self) {
        let mut state = state();
        if !state.communicators.iter().any(|known| ptr::eq(*known, self)) {
            state.communicators.push(self);
        }
        self.in_use.store(true, SeqCst);
    }

    /// Says who takes part; zeros: it is not known.
    fn shape(&self, ranks: usize, hosts: usize) {
        self.ranks.store(ranks, Relaxed);
        self.hosts.store(hosts, Relaxed);
    }

    /// NCCL will not ask for it again.
    pub fn close(&self) {
        self.shape(0, 0);
        self.in_use.store(false, SeqCst);
    }

    /// The one that NCCL kept.
    ///
    /// # Safety
    /// The context is null, or comes from [`Communicator::open`].
    pub unsafe fn of_context(context: *mut c_void) -> Option<&'static Communicator> {
        // SAFETY: the caller's promise; what `open` gives away is never freed, and all its fields are atomic.
        unsafe { context.cast::<Communicator>().as_ref() }
    }

    /// What NCCL keeps.
    pub fn context(&'static self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Ranks and hosts.
    pub fn world(&self) -> (usize, usize) {
        (self.ranks.load(Relaxed), self.hosts.load(Relaxed))
    }

    /// Decides by the policy, if there is one: one pointer is read, nothing is waited for, nothing is allocated. `decide`
    /// returns whether it wrote something.
    pub fn decide(&self, decide: impl FnOnce(&Policy) -> bool) {
        // Whoever frees policies looks only at those that are known.
        if !self.in_use.load(Relaxed) {
            return;
        }
        self.started.fetch_add(1, SeqCst);
        let _end = End(self);
        let policy = POLICY.load(SeqCst);
        // SAFETY: it is null or came from a box, and is freed only after this communicator was seen without a decision
        // under way after the pointer had been replaced (see `State::free_retired`).
        let policy = unsafe { policy.as_ref() };
        if policy.is_some_and(decide) {
            // NCCL asks about a communicator from one thread at a time; a lost count would be no harm.
            self.decided.store(self.decided.load(Relaxed) + 1, Relaxed);
        }
    }
}

impl State {
    /// Frees policies that nobody can read any more. Whoever began to decide after the pointer was replaced has the new one.
    /// So if a communicator is seen once without a decision under way, no decision there has an old one: `finished` is read
    /// first and never exceeds `started`, so they were equal at that moment.
    fn free_retired(&mut self) {
        let idle = |communicator: &&Communicator| {
            let finished = communicator.finished.load(SeqCst);
            finished == communicator.started.load(SeqCst)
        };
        if self.communicators.iter().all(idle) {
            for Retired(policy) in self.retired.drain(..) {
                // SAFETY: it came from a box, was taken out of `POLICY`, and by the above nobody reads it.
                drop(unsafe { Box::from_raw(policy) });
            }
        }
    }

    fn replace(&mut self, policy: *mut Policy) {
        let before = POLICY.swap(policy, SeqCst);
        if !before.is_null() {
            self.retired.push(Retired(before));
        }
        self.free_retired();
    }
}

/// Whoever panicked with the lock left nothing half done: each change is one step.
fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a policy for [`activate`].
///
/// # Errors
/// The switch is off.
pub fn prepare(policy: Policy) -> Result<(), String> {
    if settings().off {
        return Err(format!("{SWITCH}=off: NCCL's own choices stay"));
    }
    state().prepared = Some(Box::new(policy));
    Ok(())
}

/// Lets the prepared policy decide from now on. Returns whether one of this version was prepared.
pub fn activate(version: u64) -> bool {
    let mut state = state();
    let Some(policy) = state.prepared.take_if(|policy| policy.version() == version) else { return false };
    state.replace(Box::into_raw(policy));
    true
}

/// Leaves everything to NCCL.
pub fn clear() {
    let mut state = state();
    state.prepared = None;
    state.replace(ptr::null_mut());
}

/// Version and fingerprint of the policy that decides.
pub fn active() -> Option<(u64, u64)> {
    let _state = state();
    // SAFETY: policies are replaced and freed under the lock that is held.
    let policy = unsafe { POLICY.load(SeqCst).as_ref() };
    policy.map(|policy| (policy.version(), policy.fingerprint()))
}

/// Version and fingerprint of the policy that waits to be activated.
pub fn prepared() -> Option<(u64, u64)> {
    state().prepared.as_ref().map(|policy| (policy.version(), policy.fingerprint()))
}

/// Calls that NCCL asked about, and those of them that got an answer.
pub fn decisions() -> (u64, u64) {
    let state = state();
    let sum = |count: fn(&Communicator) -> &AtomicU64| {
        state.communicators.iter().map(|communicator| count(communicator).load(Relaxed)).sum::<u64>()
    };
    (sum(|communicator| &communicator.started), sum(|communicator| &communicator.decided))
}

/// Reads the environment and the policy file, the first time; says once what there is to say about it. Returns whether the
/// tuner is on.
pub fn begin(logger: Logger) -> bool {
    let settings = settings();
    if let Some((level, text)) = settings.message.as_ref().filter(|_| logger.is_some())
        && !settings.said.swap(true, Relaxed)
    {
        log(logger, *level, text);
    }
    !settings.off
}

/// Whether calls are recorded from the start on.
pub fn profiles() -> bool {
    settings().profile
}

fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| {
        let switch = std::env::var(SWITCH).unwrap_or_default();
        let off = ["off", "0", "no", "false"].iter().any(|word| switch.eq_ignore_ascii_case(word));
        let profile = !off && std::env::var(PROFILE).is_ok_and(|value| value == "1");
        let message = if off {
            Some((Level::Info, format!("Paceline: {SWITCH}={switch}: NCCL's own choices stay")))
        } else {
            std::env::var_os(FILE).map(|path| load(&path.to_string_lossy()))
        };
        Settings { off, profile, message, said: AtomicBool::new(false) }
    })
}

/// Activates the policy of a file, and says what came of it.
fn load(path: &str) -> (Level, String) {
    let read = || -> Result<Policy, String> {
        let mut text = String::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
        if read as u64 > MAX_FILE_BYTES {
            return Err(format!("it is larger than {MAX_FILE_BYTES} bytes, which no policy is"));
        }
        Policy::from_text(&text).map_err(|error| error.to_string())
    };
    match read() {
        Ok(policy) => {
            let (kinds, version, print) = (policy.len(), policy.version(), policy.fingerprint());
            state().replace(Box::into_raw(Box::new(policy)));
            let what = format!("{kinds} kinds of calls, version {version}, fingerprint {print:016x}");
            (Level::Info, format!("Paceline: {FILE}={path}: {what}; it must be the same on every rank"))
        }
        Err(reason) => (Level::Warn, format!("Paceline: {FILE}={path} is not used, NCCL's own choices stay: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_tune::nccl::Function;

    use super::*;
    use crate::policy::Call;

    fn policy(version: u64, algorithm: &str) -> Policy {
        let rule = format!("[[call]]\nfunction = \"AllReduce\"\nalgorithm = \"{algorithm}\"\nprotocol = \"LL\"\n");
        Policy::from_text(&format!("schema = 1\nversion = {version}\n{rule}")).expect("a policy")
    }

    /// One test, since there is one policy for the process.
    #[test]
    fn policies_change_under_those_who_read_them() {
        assert!(!activate(9), "nothing is prepared");
        prepare(policy(9, "Ring")).expect("it is on");
        assert!(!activate(8), "another version is prepared");
        assert_eq!(prepared().map(|(version, _)| version), Some(9));
        assert!(activate(9) && active().is_some_and(|(version, _)| version == 9) && prepared().is_none());
        let communicator = Communicator::open(8, 1);
        let stop = AtomicBool::new(false);
        let call = Call { function: Function::AllReduce, bytes: 64, ranks: 8, hosts: 1, pipelined: false };
        let answered = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut answered = 0_u64;
                while !stop.load(Relaxed) || answered == 0 {
                    communicator.decide(|policy| {
                        answered += u64::from(policy.call(&call).is_some_and(|choice| choice.way().is_some()));
                        true
                    });
                }
                answered
            });
            for version in 10..300 {
                let algorithm = if version % 2 == 0 { "Tree" } else { "Ring" };
                prepare(policy(version, algorithm)).expect("it is on");
                assert!(activate(version));
            }
            stop.store(true, Relaxed);
            reader.join().expect("the reader")
        });
        // Every decision had a policy, a whole one.
        assert_eq!(communicator.decided.load(Relaxed), answered);
        assert_eq!(decisions(), (answered, answered));
        // With nobody reading, nothing old is kept.
        clear();
        assert!(active().is_none() && state().retired.is_empty());
        communicator.close();
        assert!(ptr::eq(Communicator::open(2, 1), communicator), "a closed one is used again");
    }
}
