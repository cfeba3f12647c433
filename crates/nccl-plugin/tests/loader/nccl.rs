//! What NCCL does with a tuner.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::mem::transmute;
use std::ptr;

use crate::library::Library;
use crate::releases::Release;

/// A context, as NCCL keeps it.
pub type Context = *mut c_void;

/// NCCL's log takes more arguments; this one takes as many as the plug-ins here give.
pub type Log = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

/// What is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pub function: c_int,
    pub bytes: usize,
    pub operations: c_int,
    /// Whether buffers can be registered; ranks may differ in it.
    pub can_register: c_int,
}

/// The answers of versions 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    pub algorithm: c_int,
    pub protocol: c_int,
    pub channels: c_int,
}

/// A tuner that was found: the addresses of its structure, name first.
pub struct Tuner {
    pub version: u32,
    members: [*const c_void; 5],
}

type InitV1 = unsafe extern "C" fn(usize, usize, Option<Log>) -> c_int;
type InitV2 = unsafe extern "C" fn(usize, usize, Option<Log>, *mut Context) -> c_int;
type InitV5 =
    unsafe extern "C" fn(*mut Context, u64, usize, usize, Option<Log>, *mut [c_int; 3], *mut [f64; 159]) -> c_int;
type AskV1 = unsafe extern "C" fn(c_int, usize, c_int, c_int, c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type AskV2 =
    unsafe extern "C" fn(Context, c_int, usize, c_int, c_int, c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type AskV3 = unsafe extern "C" fn(Context, c_int, usize, c_int, *mut *mut f32, c_int, c_int, *mut c_int) -> c_int;
type AskV4 =
    unsafe extern "C" fn(Context, c_int, usize, c_int, *mut *mut f32, c_int, c_int, c_int, *mut c_int) -> c_int;
type Chunk = unsafe extern "C" fn(Context, c_int, usize, c_int, c_int, c_int, *mut usize) -> c_int;
type End = unsafe extern "C" fn(Context) -> c_int;
type EndV1 = unsafe extern "C" fn() -> c_int;

impl Tuner {
    /// The first of a release's symbols that is there.
    pub fn find(library: &dyn Library, release: &Release) -> Option<Tuner> {
        let found = release.tuners.iter().find_map(|version| {
            let symbol = library.symbol(&format!("ncclTunerPlugin_v{version}"));
            (!symbol.is_null()).then_some((*version, symbol))
        });
        let (version, symbol) = found?;
        let mut members = [ptr::null(); 5];
        for (place, member) in members.iter_mut().enumerate().take(if version >= 6 { 5 } else { 4 }) {
            // SAFETY: a structure of this version is so many addresses.
            *member = unsafe { symbol.cast::<*const c_void>().add(place).read() };
        }
        Some(Tuner { version, members })
    }

    /// A communicator begins; what `init` returned is an error if it is not 0.
    pub fn init(&self, ranks: usize, hosts: usize, log: Option<Log>) -> Result<Context, String> {
        let mut context = ptr::null_mut();
        let (mut domains, mut constants) = ([1, 1, 1], [1.0; 159]);
        let member = self.members[1];
        // SAFETY: the member is this function in this version; all places outlive the call.
        let result = unsafe {
            match self.version {
                1 => transmute::<*const c_void, InitV1>(member)(ranks, hosts, log),
                2..=4 => transmute::<*const c_void, InitV2>(member)(ranks, hosts, log, &raw mut context),
                _ => {
                    let init = transmute::<*const c_void, InitV5>(member);
                    init(&raw mut context, 7, ranks, hosts, log, &raw mut domains, &raw mut constants)
                }
            }
        };
        if constants != [1.0; 159] || domains != [1; 3] {
            return Err("init wrote to the constants, which later releases overwrite".to_owned());
        }
        if result == 0 { Ok(context) } else { Err(format!("init returned {result}: no communicator")) }
    }

    /// Versions 1 and 2.
    pub fn ask_direct(&self, context: Context, question: &Question, answer: &mut Direct) -> c_int {
        let Question { function, bytes, operations, .. } = *question;
        let Direct { algorithm, protocol, channels } = answer;
        let member = self.members[2];
        // SAFETY: the member is this function in this version; all places outlive the call.
        unsafe {
            if self.version == 1 {
                let ask = transmute::<*const c_void, AskV1>(member);
                ask(function, bytes, 0, 0, operations, algorithm, protocol, channels)
            } else {
                let ask = transmute::<*const c_void, AskV2>(member);
                ask(context, function, bytes, 0, 0, operations, algorithm, protocol, channels)
            }
        }
    }

    /// Versions 3 and later: `costs` points to rows of so many protocols.
    pub fn ask(
        &self,
        context: Context,
        question: &Question,
        costs: *mut f32,
        (algorithms, protocols): (usize, usize),
        channels: &mut c_int,
    ) -> c_int {
        let Question { function, bytes, operations, can_register } = *question;
        let (costs, algorithms, protocols) = (costs.cast::<*mut f32>(), algorithms as c_int, protocols as c_int);
        let member = self.members[2];
        // SAFETY: the member is this function in this version; all places outlive the call.
        unsafe {
            if self.version == 3 {
                let ask = transmute::<*const c_void, AskV3>(member);
                ask(context, function, bytes, operations, costs, algorithms, protocols, channels)
            } else {
                let ask = transmute::<*const c_void, AskV4>(member);
                ask(context, function, bytes, operations, costs, algorithms, protocols, can_register, channels)
            }
        }
    }

    /// Versions 6 and later, if the plug-in has it: function, bytes, algorithm, protocol.
    pub fn chunk(&self, context: Context, call: (c_int, usize, c_int, c_int), chunk: &mut usize) -> Option<c_int> {
        let member = Some(self.members[4]).filter(|member| !member.is_null())?;
        let (function, bytes, algorithm, protocol) = call;
        // SAFETY: the member is this function; its place outlives the call.
        Some(unsafe {
            transmute::<*const c_void, Chunk>(member)(context, function, bytes, algorithm, protocol, 1, chunk)
        })
    }

    /// A communicator ends.
    pub fn end(&self, context: Context) -> c_int {
        let member = self.members[3];
        // SAFETY: the member is this function in this version.
        unsafe {
            if self.version == 1 {
                transmute::<*const c_void, EndV1>(member)()
            } else {
                transmute::<*const c_void, End>(member)(context)
            }
        }
    }
}
