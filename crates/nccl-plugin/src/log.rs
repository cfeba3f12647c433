//! NCCL's log.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong};

use crate::abi::Logger;

/// Levels of NCCL's log.
#[derive(Clone, Copy, Debug)]
pub enum Level {
    /// Printed with NCCL_DEBUG=WARN and above.
    Warn = 2,
    /// Printed with NCCL_DEBUG=INFO and above.
    Info = 3,
}

/// NCCL_DEBUG_SUBSYS=TUNING.
const TUNING: c_ulong = 0x40;
/// The text is an argument: per cent signs in it mean nothing.
const FORMAT: &CStr = c"%s";

/// Writes a line, if NCCL has a log.
pub fn log(logger: Logger, level: Level, text: &str) {
    let Some(logger) = logger else { return };
    let Ok(text) = CString::new(text.replace('\0', "?")) else { return };
    let (file, format): (*const c_char, *const c_char) = (c"paceline".as_ptr(), FORMAT.as_ptr());
    // SAFETY: NCCL's function takes these five arguments and, as the format says, one text; all outlive the call.
    unsafe { logger(level as c_int, TUNING, file, 0, format, text.as_ptr()) };
}
