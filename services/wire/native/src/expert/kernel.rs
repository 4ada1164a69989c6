//! Batches computed by the kernel library's C entry, `moe_group_run` (kernels/csrc/abi.h), without the interpreter.
//!
//! Items whose element types agree go through the experts together, one pass over the weights for all routers, as in
//! moe.expert.compute; a batch's bits are the same on either way.

use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr};

use bytes::Bytes;

use super::accept::numbers;
use crate::api::tensor::Dtype;
use crate::queue::Item;
use crate::tensors::item_size;

const MESSAGE_BYTES: usize = 512;

/// handle, rows, row_stride, n_rows, slot_rows, slot_experts, slot_weights, weights_dtype, n_slots, partial,
/// partial_dtype, threads, error, error_size; 0, or 1 and a message.
pub type Function = unsafe extern "C" fn(
    *const c_void,
    *const c_void,
    i64,
    i64,
    *const i32,
    *const i32,
    *const c_void,
    i32,
    i64,
    *mut c_void,
    i32,
    i32,
    *mut c_char,
    i64,
) -> i32;

/// A layer's packed experts. Whoever registers it promises that both outlive the process's last batch.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub function: Function,
    pub handle: usize,
    /// That a batch is computed with.
    pub threads: i32,
}

/// Answers rows as they came, in the function's signature: what a hop costs without the work. handle: bytes of a row.
///
/// # Safety
/// As for `Function`; the partial's elements are as wide as the rows'.
pub unsafe extern "C" fn echo(
    handle: *const c_void,
    rows: *const c_void,
    _row_stride: i64,
    n_rows: i64,
    _slot_rows: *const i32,
    _slot_experts: *const i32,
    _slot_weights: *const c_void,
    _weights_dtype: i32,
    _n_slots: i64,
    partial: *mut c_void,
    _partial_dtype: i32,
    _threads: i32,
    _error: *mut c_char,
    _error_size: i64,
) -> i32 {
    let bytes = n_rows as usize * handle as usize;
    std::ptr::copy_nonoverlapping(rows.cast::<u8>(), partial.cast(), bytes);
    0
}

/// A partial's elements; as wide as the widest, so that they are aligned.
struct Elements {
    words: Vec<u32>,
    bytes: usize,
}

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the words are initialised, at least as many bytes, and have no padding.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes) }
    }
}

/// The partials of a batch's items, in their order. The error is the kernel's message.
pub fn compute(kernel: &Kernel, items: &[Item], hidden: usize) -> Result<Vec<Bytes>, String> {
    if let [item] = items {
        return Ok(vec![run(kernel, std::slice::from_ref(&item), hidden)?]);
    }
    let mut partials = vec![Bytes::new(); items.len()];
    let mut kinds: HashMap<(Dtype, Dtype), Vec<usize>> = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        let kind = (item.slot_weights.dtype, item.partial_dtype);
        kinds.entry(kind).or_default().push(place);
    }
    for places in kinds.into_values() {
        let alike: Vec<&Item> = places.iter().map(|&place| &items[place]).collect();
        let joined = run(kernel, &alike, hidden)?;
        let mut start = 0;
        for (place, item) in places.into_iter().zip(alike) {
            let end = start + item.rows.len() * hidden * item_size(item.partial_dtype);
            partials[place] = joined.slice(start..end);
            start = end;
        }
    }
    Ok(partials)
}

/// Items of the same types in one call.
fn run(kernel: &Kernel, items: &[&Item], hidden: usize) -> Result<Bytes, String> {
    let first = items[0];
    let (mut slot_rows, mut slot_experts, mut rows) = (vec![], vec![], 0);
    for item in items {
        slot_rows.extend(numbers(&item.slot_rows).map(|row| row + rows as i32));
        slot_experts.extend(numbers(&item.slot_experts));
        rows += item.rows.len();
    }
    let inputs = joined(items.iter().map(|item| &item.rows.data));
    let weights = joined(items.iter().map(|item| &item.slot_weights.data));
    let bytes = rows * hidden * item_size(first.partial_dtype);
    let mut words: Vec<u32> = Vec::with_capacity(bytes.div_ceil(4));
    let mut message = [0 as c_char; MESSAGE_BYTES];
    // SAFETY: `Kernel`'s promise for function and handle; the items were checked when they were accepted: slots name
    // rows below `rows` and experts that are held, and each tensor has the bytes that its shape says. rows and weights
    // may lie at any address; all else is a vector of its own type. The function writes `bytes` bytes of partials, or
    // fails and writes a message that it ends by a zero.
    let failed = unsafe {
        (kernel.function)(
            kernel.handle as *const c_void,
            inputs.as_ptr().cast(),
            hidden as i64,
            rows as i64,
            slot_rows.as_ptr(),
            slot_experts.as_ptr(),
            weights.as_ptr().cast(),
            first.slot_weights.dtype as i32,
            slot_rows.len() as i64,
            words.as_mut_ptr().cast(),
            first.partial_dtype as i32,
            kernel.threads,
            message.as_mut_ptr(),
            MESSAGE_BYTES as i64,
        )
    };
    if failed != 0 {
        message[MESSAGE_BYTES - 1] = 0;
        // SAFETY: a zero is there.
        let message = unsafe { CStr::from_ptr(message.as_ptr()) };
        return Err(message.to_string_lossy().into_owned());
    }
    if bytes % 4 != 0 {
        // The last word is written by half.
        // SAFETY: within the capacity.
        unsafe {
            words
                .as_mut_ptr()
                .cast::<u8>()
                .add(bytes)
                .write_bytes(0, 4 - bytes % 4)
        };
    }
    // SAFETY: all were written.
    unsafe { words.set_len(bytes.div_ceil(4)) };
    Ok(Bytes::from_owner(Elements { words, bytes }))
}

fn joined<'a>(pieces: impl ExactSizeIterator<Item = &'a Bytes> + Clone) -> Bytes {
    if pieces.len() == 1 {
        return pieces.into_iter().next().cloned().unwrap_or_default();
    }
    let mut all = Vec::with_capacity(pieces.clone().map(Bytes::len).sum());
    pieces.for_each(|piece| all.extend_from_slice(piece));
    all.into()
}
