//! Tensors in messages: what they claim is checked before anything reads their bytes.

use bytes::Bytes;

use crate::api::tensor::{Dtype, Tensor};

/// Bound of an empty tensor's other extents, as in moe.runtime.tensors.
const LARGEST_EMPTY: u64 = (1 << 31) - 1;

/// A tensor whose bytes are as many as its shape and element type say.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    pub dtype: Dtype,
    pub shape: Vec<u32>,
    pub data: Bytes,
}

/// The bytes of an element; 0 for none.
pub fn item_size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Float32 | Dtype::Int32 => 4,
        Dtype::Bfloat16 | Dtype::Float16 => 2,
        Dtype::Int64 => 8,
        Dtype::Unspecified => 0,
    }
}

/// The name that people know.
pub fn name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float32 => "float32",
        Dtype::Bfloat16 => "bfloat16",
        Dtype::Float16 => "float16",
        Dtype::Int32 => "int32",
        Dtype::Int64 => "int64",
        Dtype::Unspecified => "DTYPE_UNSPECIFIED",
    }
}

/// Whether rows may have this type.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16)
}

/// The type of a wire's value; the message says what is wrong with another.
pub fn dtype_of(value: i32, field: &str) -> Result<Dtype, String> {
    match Dtype::try_from(value) {
        Ok(dtype) if dtype != Dtype::Unspecified => Ok(dtype),
        Ok(_) => Err(format!(
            "{field}: unknown dtype DTYPE_UNSPECIFIED; want {ALL}"
        )),
        Err(_) => Err(format!("{field}: unknown dtype {value}; want {ALL}")),
    }
}

const ALL: &str = "one of bfloat16 or float16 or float32 or int32 or int64";

impl Rows {
    /// The tensor in a message. The error names the field, what came and what is wanted.
    pub fn read(message: Option<Tensor>, field: &str) -> Result<Rows, String> {
        let message = message.unwrap_or_default();
        let dtype = dtype_of(message.dtype, &format!("{field}.dtype"))?;
        let elements = message
            .shape
            .iter()
            .try_fold(1u64, |all, &extent| all.checked_mul(u64::from(extent)));
        let want = elements.and_then(|all| all.checked_mul(item_size(dtype) as u64));
        if want != Some(message.data.len() as u64) {
            return Err(format!(
                "{field}.data: got {} bytes, want {} for {:?} elements of {}",
                message.data.len(),
                want.map_or("more than fits".to_string(), |bytes| bytes.to_string()),
                message.shape,
                name(dtype)
            ));
        }
        let others = message.shape.iter().filter(|&&extent| extent > 0);
        let others = others.fold(1u64, |all, &extent| all.saturating_mul(u64::from(extent)));
        if want == Some(0) && others > LARGEST_EMPTY {
            return Err(format!(
                "{field}.shape: got {:?}, want extents that multiply to {LARGEST_EMPTY}",
                message.shape
            ));
        }
        Ok(Rows {
            dtype,
            shape: message.shape,
            data: message.data,
        })
    }

    /// The same as a message.
    pub fn into_message(self) -> Tensor {
        Tensor {
            dtype: self.dtype as i32,
            shape: self.shape,
            data: self.data,
        }
    }

    /// Extent of the first dimension; 0 for a scalar.
    pub fn len(&self) -> usize {
        self.shape.first().map_or(0, |&extent| extent as usize)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements of an int32 vector. The error names the field and what is wanted.
    pub fn int32(&self, field: &str) -> Result<Vec<i32>, String> {
        self.want(field, &[Dtype::Int32], &[None])?;
        Ok(self
            .data
            .chunks_exact(4)
            .map(|four| i32::from_le_bytes(four.try_into().unwrap()))
            .collect())
    }

    /// The elements of a float32 vector. The error names the field and what is wanted.
    pub fn float32(&self, field: &str) -> Result<Vec<f32>, String> {
        self.want(field, &[Dtype::Float32], &[None])?;
        Ok(self
            .data
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect())
    }

    /// Checks type and shape; None stands for any extent.
    pub fn want(
        &self,
        field: &str,
        dtypes: &[Dtype],
        shape: &[Option<usize>],
    ) -> Result<(), String> {
        if !dtypes.contains(&self.dtype) {
            let names: Vec<&str> = dtypes.iter().map(|&dtype| name(dtype)).collect();
            return Err(format!(
                "{field}.dtype: got {}, want {}",
                name(self.dtype),
                names.join(" or ")
            ));
        }
        let fits = self.shape.len() == shape.len()
            && self
                .shape
                .iter()
                .zip(shape)
                .all(|(&got, want)| want.is_none_or(|want| got as usize == want));
        if fits {
            return Ok(());
        }
        let wanted: Vec<String> = shape
            .iter()
            .map(|extent| extent.map_or("any".to_string(), |extent| extent.to_string()))
            .collect();
        Err(format!(
            "{field}.shape: got {:?}, want [{}]",
            self.shape,
            wanted.join(", ")
        ))
    }
}

/// An int32 vector as a message.
pub fn int32_message(values: &[i32]) -> Tensor {
    let data: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    Tensor {
        dtype: Dtype::Int32 as i32,
        shape: vec![values.len() as u32],
        data: data.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(dtype: i32, shape: &[u32], bytes: usize) -> Option<Tensor> {
        Some(Tensor {
            dtype,
            shape: shape.to_vec(),
            data: vec![0; bytes].into(),
        })
    }

    #[test]
    fn reads_what_adds_up_and_names_what_does_not() {
        assert_eq!(
            Rows::read(message(1, &[2, 3], 24), "rows").unwrap().len(),
            2
        );
        assert!(Rows::read(message(1, &[2, 3], 23), "rows")
            .unwrap_err()
            .contains("got 23 bytes, want 24"));
        assert!(Rows::read(message(0, &[1], 4), "rows")
            .unwrap_err()
            .starts_with("rows.dtype"));
        assert!(Rows::read(message(9, &[1], 4), "rows")
            .unwrap_err()
            .contains('9'));
        assert!(Rows::read(None, "rows").is_err());
    }

    #[test]
    fn hostile_shapes_only_make_a_number_that_no_data_equals() {
        let huge = [u32::MAX, u32::MAX, u32::MAX];
        assert!(Rows::read(message(5, &huge, 8), "rows")
            .unwrap_err()
            .contains("more than fits"));
        assert!(Rows::read(message(1, &[0, u32::MAX, 2], 0), "rows")
            .unwrap_err()
            .contains("rows.shape"));
        assert!(Rows::read(message(1, &[0, 7], 0), "rows").is_ok());
    }
}
