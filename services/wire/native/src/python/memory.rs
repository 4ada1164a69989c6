//! Tensors as memory: torch's, read where they lie; and the wire's, which torch reads without a copy.

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::api::tensor::{Dtype, Tensor};
use crate::tensors::{item_size, Rows};

/// Torch's element types, which are single objects, in the order of `WIRE`.
static DTYPES: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();
const WIRE: [(Dtype, &str); 5] = [
    (Dtype::Float32, "float32"),
    (Dtype::Bfloat16, "bfloat16"),
    (Dtype::Int32, "int32"),
    (Dtype::Float16, "float16"),
    (Dtype::Int64, "int64"),
];

fn dtypes(py: Python<'_>) -> PyResult<&Vec<Py<PyAny>>> {
    DTYPES.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        WIRE.iter()
            .map(|(_, name)| Ok(torch.getattr(*name)?.unbind()))
            .collect()
    })
}

/// The wire's number of a torch dtype. TypeError for one that does not travel.
pub fn dtype_of(given: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    let known = dtypes(given.py())?;
    let at = known.iter().position(|dtype| dtype.is(given));
    at.map(|at| WIRE[at].0).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{given} does not travel; one of bfloat16 or float16 or float32 or int32 or int64 does"
        ))
    })
}

/// The torch dtype of a number of the wire.
pub fn torch_dtype(py: Python<'_>, dtype: Dtype) -> PyResult<Py<PyAny>> {
    let at = WIRE.iter().position(|(known, _)| *known == dtype);
    let at = at.ok_or_else(|| PyTypeError::new_err("a tensor without a dtype"))?;
    Ok(dtypes(py)?[at].clone_ref(py))
}

/// Where a tensor's elements lie. Valid while whoever made it holds the tensor's reference.
#[derive(Clone, Copy)]
pub struct View {
    address: usize,
    pub dtype: Dtype,
    /// Of the first dimension.
    pub len: usize,
    /// Elements of each of these.
    pub width: usize,
}

impl View {
    /// # Safety
    /// The tensor is alive and nobody writes to it.
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        let bytes = self.len * self.width * item_size(self.dtype);
        if bytes == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.address as *const u8, bytes)
    }

    /// # Safety
    /// As for `bytes`.
    pub unsafe fn int32(&self) -> Vec<i32> {
        let fours = self.bytes().chunks_exact(4);
        fours
            .map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect()
    }

    /// The vector as a message, copied.
    ///
    /// # Safety
    /// As for `bytes`.
    pub unsafe fn vector_message(&self) -> Tensor {
        Tensor {
            dtype: self.dtype as i32,
            shape: vec![self.len as u32],
            data: Bytes::copy_from_slice(self.bytes()),
        }
    }
}

/// A tensor's memory, row-major and on the CPU: `kept` gets what has to stay alive.
pub fn view<'py>(
    tensor: &Bound<'py, PyAny>,
    dimensions: usize,
    kept: &mut Vec<Bound<'py, PyAny>>,
) -> PyResult<View> {
    let py = tensor.py();
    let plain = tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()?
        && tensor
            .call_method0(intern!(py, "is_contiguous"))?
            .is_truthy()?;
    let tensor = if plain {
        tensor.clone()
    } else {
        let moved = tensor
            .call_method0(intern!(py, "detach"))?
            .call_method0(intern!(py, "cpu"))?;
        moved.call_method0(intern!(py, "contiguous"))?
    };
    let len = tensor.len()?;
    let width = match dimensions {
        1 => 1,
        _ => tensor.call_method1(intern!(py, "size"), (1,))?.extract()?,
    };
    let view = View {
        address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
        dtype: dtype_of(&tensor.getattr(intern!(py, "dtype"))?)?,
        len,
        width,
    };
    kept.push(tensor);
    Ok(view)
}

/// A tensor of any shape, copied out as rows of the wire.
pub fn rows_of(tensor: &Bound<'_, PyAny>) -> PyResult<Rows> {
    let shape: Vec<u32> = tensor.getattr("shape")?.extract()?;
    let dtype = dtype_of(&tensor.getattr("dtype")?)?;
    let data = bytes_of(tensor)?;
    Ok(Rows { dtype, shape, data })
}

/// From here on a tensor's memory is lent to the wire instead of copied.
const LENT_BYTES: usize = 16 << 10;

/// A tensor that is kept alive while its memory is read.
struct Lent {
    address: usize,
    bytes: usize,
    _tensor: Py<PyAny>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the tensor is alive, contiguous and as long as that; whoever lent it does not write to it any more.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }
}

/// A tensor's elements, row-major. A long tensor is lent: nobody may write to it from now on.
pub fn bytes_of(tensor: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let mut kept = vec![];
    let flat = view(
        &tensor.call_method1(intern!(tensor.py(), "reshape"), (-1,))?,
        1,
        &mut kept,
    )?;
    // SAFETY: `kept` holds the tensor, and the interpreter's lock is held.
    let all = unsafe { flat.bytes() };
    match kept.pop() {
        Some(owner) if all.len() >= LENT_BYTES => Ok(Bytes::from_owner(Lent {
            address: flat.address,
            bytes: all.len(),
            _tensor: owner.unbind(),
        })),
        _ => Ok(Bytes::copy_from_slice(all)),
    }
}

/// Elements of a tensor that came over the wire, as a buffer for torch.frombuffer. Torch knows no tensors that must not
/// be written to; these are an expert's input or a router's answer, and each has one reader.
#[pyclass(frozen, module = "moe_wire_native")]
pub struct Memory {
    data: Bytes,
    #[pyo3(get)]
    shape: Vec<u32>,
    dtype: Dtype,
}

impl Memory {
    /// Rows as they are where they are aligned to their elements, else copied once.
    pub fn new(rows: Rows) -> Self {
        let aligned = rows.data.as_ptr() as usize % item_size(rows.dtype).max(1) == 0;
        let data = if aligned {
            rows.data
        } else {
            rows.data.to_vec().into()
        };
        Memory {
            data,
            shape: rows.shape,
            dtype: rows.dtype,
        }
    }
}

#[pymethods]
impl Memory {
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        torch_dtype(py, self.dtype)
    }

    fn __len__(&self) -> usize {
        self.data.len()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let data = &slf.get().data;
        let (pointer, size) = (data.as_ptr() as *mut c_void, data.len() as ffi::Py_ssize_t);
        if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer, size, 0, flags) == 0 {
            return Ok(());
        }
        Err(PyErr::take(slf.py()).unwrap_or_else(|| PyBufferError::new_err("no buffer")))
    }
}
