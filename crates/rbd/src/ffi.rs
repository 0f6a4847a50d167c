//! The calls of librados and librbd that are used here, found when they are first needed.
//!
//! Types are those of the headers on a 64-bit machine (`int` is `c_int`, `ssize_t` is `isize`).

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

use crate::error::LoadError;

/// `rados_t`, `rados_ioctx_t`, `rbd_image_t`, `rbd_completion_t`: pointers to what only Ceph knows.
pub(crate) type Opaque = *mut c_void;

/// `rbd_callback_t`.
pub(crate) type OnCompletion = unsafe extern "C" fn(completion: Opaque, argument: *mut c_void);

/// `rbd_update_callback_t`.
pub(crate) type OnUpdate = unsafe extern "C" fn(argument: *mut c_void);

/// The callback of `rbd_diff_iterate2`: offset, length, whether it exists, argument.
pub(crate) type OnDifference = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// Feature bit: the object map tells which objects exist without a question to each.
pub(crate) const FEATURE_FAST_DIFF: u64 = 1 << 4;

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const ZEROES_THICK: c_int = 1;

/// `LIBRADOS_CREATE_EXCLUSIVE`.
pub(crate) const CREATE_EXCLUSIVE: c_int = 1;

const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

struct Libraries {
    rados: Library,
    rbd: Library,
}

macro_rules! calls {
    ($($library:ident $file:ident $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Pointers to them. The libraries stay loaded to the end of the process.
        pub(crate) struct Calls {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Calls {
            fn find(libraries: &Libraries) -> Result<Self, LoadError> {
                Ok(Self {
                    // SAFETY: the type is the one that Ceph's header gives to this name.
                    $($name: unsafe { find(&libraries.$library, $file, stringify!($name))? },)*
                })
            }
        }
    };
}

calls! {
    rados RADOS rados_create(*mut Opaque, *const c_char) -> c_int;
    rados RADOS rados_conf_read_file(Opaque, *const c_char) -> c_int;
    rados RADOS rados_conf_parse_env(Opaque, *const c_char) -> c_int;
    rados RADOS rados_conf_get(Opaque, *const c_char, *mut c_char, usize) -> c_int;
    rados RADOS rados_conf_set(Opaque, *const c_char, *const c_char) -> c_int;
    rados RADOS rados_connect(Opaque) -> c_int;
    rados RADOS rados_shutdown(Opaque);
    rados RADOS rados_ioctx_create(Opaque, *const c_char, *mut Opaque) -> c_int;
    rados RADOS rados_ioctx_set_namespace(Opaque, *const c_char);
    rados RADOS rados_ioctx_destroy(Opaque);
    rados RADOS rados_read(Opaque, *const c_char, *mut c_char, usize, u64) -> c_int;
    rados RADOS rados_get_last_version(Opaque) -> u64;
    rados RADOS rados_create_write_op() -> Opaque;
    rados RADOS rados_release_write_op(Opaque);
    rados RADOS rados_write_op_create(Opaque, c_int, *const c_char);
    rados RADOS rados_write_op_assert_version(Opaque, u64);
    rados RADOS rados_write_op_write_full(Opaque, *const c_char, usize);
    rados RADOS rados_write_op_operate(
        Opaque, Opaque, *const c_char, *mut libc::time_t, c_int) -> c_int;
    rbd RBD rbd_open(Opaque, *const c_char, *mut Opaque, *const c_char) -> c_int;
    rbd RBD rbd_open_read_only(Opaque, *const c_char, *mut Opaque, *const c_char) -> c_int;
    rbd RBD rbd_close(Opaque) -> c_int;
    rbd RBD rbd_get_size(Opaque, *mut u64) -> c_int;
    rbd RBD rbd_get_features(Opaque, *mut u64) -> c_int;
    rbd RBD rbd_update_watch(Opaque, *mut u64, OnUpdate, *mut c_void) -> c_int;
    rbd RBD rbd_update_unwatch(Opaque, u64) -> c_int;
    rbd RBD rbd_diff_iterate2(
        Opaque, *const c_char, u64, u64, u8, u8, OnDifference, *mut c_void) -> c_int;
    rbd RBD rbd_aio_create_completion(*mut c_void, OnCompletion, *mut Opaque) -> c_int;
    rbd RBD rbd_aio_get_return_value(Opaque) -> isize;
    rbd RBD rbd_aio_release(Opaque);
    rbd RBD rbd_aio_read(Opaque, u64, usize, *mut c_char, Opaque) -> c_int;
    rbd RBD rbd_aio_write(Opaque, u64, usize, *const c_char, Opaque) -> c_int;
    rbd RBD rbd_aio_flush(Opaque, Opaque) -> c_int;
    rbd RBD rbd_aio_write_zeroes(Opaque, u64, usize, Opaque, c_int, c_int) -> c_int;
    rbd RBD rbd_aio_compare_and_write(
        Opaque, u64, usize, *const c_char, *const c_char, Opaque, *mut u64, c_int) -> isize;
}

/// # Safety
/// `T` is a pointer to a function of the type that the symbol has.
unsafe fn find<T: Copy>(
    library: &Library,
    file: &'static str,
    call: &'static str,
) -> Result<T, LoadError> {
    // SAFETY: the caller vouches for the type.
    let found = unsafe { library.get::<T>(call) };
    match found {
        Ok(symbol) => Ok(*symbol),
        Err(source) => Err(LoadError::Call { file, call, source }),
    }
}

fn library(file: &'static str) -> Result<Library, LoadError> {
    // SAFETY: Ceph's libraries run constructors of C++ statics and nothing else when loaded, and
    // are of this name on every distribution. They are never unloaded.
    unsafe { Library::new(file) }.map_err(|source| LoadError::Library { file, source })
}

/// Ceph's calls, from now on. A failure is not kept: the packages may be installed meanwhile.
///
/// # Errors
/// [`LoadError`].
pub(crate) fn calls() -> Result<&'static Calls, LoadError> {
    static CALLS: OnceLock<Calls> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    if let Some(calls) = CALLS.get() {
        return Ok(calls);
    }
    let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(calls) = CALLS.get() {
        return Ok(calls);
    }
    let libraries = Libraries { rados: library(RADOS)?, rbd: library(RBD)? };
    let calls = Calls::find(&libraries)?;
    // Threads of theirs run on, and the pointers are kept for good.
    std::mem::forget(libraries);
    Ok(CALLS.get_or_init(|| calls))
}
