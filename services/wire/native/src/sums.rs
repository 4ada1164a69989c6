//! Arithmetic on rows as they came over the wire: any alignment, one fixed order of addition, sums in float32.

use half::{bf16, f16};

use crate::api::tensor::Dtype;

/// Calls a generic loop compiled for AVX2 where the processor has it; the operations and so the bits are the same.
macro_rules! widest {
    ($name:ident, $wide:ident, $body:ident, ($($argument:ident: $kind:ty),*) $(-> $result:ty)?) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn $wide($($argument: $kind),*) $(-> $result)? {
            $body($($argument),*)
        }

        fn $name($($argument: $kind),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
                // SAFETY: the processor has what the function was compiled for.
                return unsafe { $wide($($argument),*) };
            }
            $body($($argument),*)
        }
    };
}

#[inline(always)]
fn bf16_at(two: &[u8]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16)
}

#[inline(always)]
fn f32_at(four: &[u8]) -> f32 {
    f32::from_le_bytes([four[0], four[1], four[2], four[3]])
}

#[inline(always)]
fn f16_at(two: &[u8]) -> f32 {
    f16::from_le_bytes([two[0], two[1]]).to_f32()
}

#[inline(always)]
fn add_f32_body(sums: &mut [f32], row: &[u8]) {
    for (sum, four) in sums.iter_mut().zip(row.chunks_exact(4)) {
        *sum += f32_at(four);
    }
}

#[inline(always)]
fn add_bf16_body(sums: &mut [f32], row: &[u8]) {
    for (sum, two) in sums.iter_mut().zip(row.chunks_exact(2)) {
        *sum += bf16_at(two);
    }
}

#[inline(always)]
fn add_f16_body(sums: &mut [f32], row: &[u8]) {
    for (sum, two) in sums.iter_mut().zip(row.chunks_exact(2)) {
        *sum += f16_at(two);
    }
}

widest!(add_f32, add_f32_wide, add_f32_body, (sums: &mut [f32], row: &[u8]));
widest!(add_bf16, add_bf16_wide, add_bf16_body, (sums: &mut [f32], row: &[u8]));
widest!(add_f16, add_f16_wide, add_f16_body, (sums: &mut [f32], row: &[u8]));

/// Adds one row of a partial.
pub fn add_row(sums: &mut [f32], row: &[u8], dtype: Dtype) {
    match dtype {
        Dtype::Float32 => add_f32(sums, row),
        Dtype::Bfloat16 => add_bf16(sums, row),
        _ => add_f16(sums, row),
    }
}

/// The largest size among the elements, as a bit pattern: magnitudes of floats order as their bits do, and infinity and
/// NaN lie above all numbers.
#[inline(always)]
fn most_f32_body(data: &[u8]) -> u32 {
    data.chunks_exact(4).fold(0, |most, four| {
        most.max(f32_at(four).to_bits() & 0x7fff_ffff)
    })
}

#[inline(always)]
fn most_16_body(data: &[u8]) -> u32 {
    u32::from(data.chunks_exact(2).fold(0u16, |most, two| {
        most.max(u16::from_le_bytes([two[0], two[1]]) & 0x7fff)
    }))
}

widest!(most_f32, most_f32_wide, most_f32_body, (data: &[u8]) -> u32);
widest!(most_16, most_16_wide, most_16_body, (data: &[u8]) -> u32);

/// The largest size among the elements; infinite or NaN when such a value is there (NaN wins).
pub fn largest(data: &[u8], dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Float32 => f32::from_bits(most_f32(data)),
        Dtype::Bfloat16 => f32::from_bits(most_16(data) << 16),
        _ => f16::from_bits(most_16(data) as u16).to_f32(),
    }
}

#[inline(always)]
fn round_bf16_body(sums: &[f32], out: &mut [u8]) {
    for (sum, two) in sums.iter().zip(out.chunks_exact_mut(2)) {
        let bits = sum.to_bits();
        // To the nearest, ties to even. Sums are not NaN: partials are finite, and an overflow is infinite.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        two.copy_from_slice(&(rounded as u16).to_le_bytes());
    }
}

widest!(round_bf16, round_bf16_wide, round_bf16_body, (sums: &[f32], out: &mut [u8]));

/// The sums in the answer's type, little-endian.
pub fn rounded(sums: &[f32], dtype: Dtype) -> Vec<u8> {
    let mut out = vec![0u8; sums.len() * crate::tensors::item_size(dtype)];
    match dtype {
        Dtype::Float32 => {
            for (sum, four) in sums.iter().zip(out.chunks_exact_mut(4)) {
                four.copy_from_slice(&sum.to_le_bytes());
            }
        }
        Dtype::Bfloat16 => round_bf16(sums, &mut out),
        _ => {
            for (sum, two) in sums.iter().zip(out.chunks_exact_mut(2)) {
                two.copy_from_slice(&f16::from_f32(*sum).to_le_bytes());
            }
        }
    }
    out
}

/// One element as a float32.
pub fn value(data: &[u8], index: usize, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Float32 => f32_at(&data[index * 4..index * 4 + 4]),
        Dtype::Bfloat16 => bf16::from_le_bytes([data[index * 2], data[index * 2 + 1]]).to_f32(),
        _ => f16_at(&data[index * 2..index * 2 + 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_as_the_half_crate_does() {
        let sums: Vec<f32> = (0..20_000)
            .map(|i| (i as f32 - 1e4) * 0.123_456_7 * 1.5f32.powi(i % 60 - 30))
            .collect();
        let want: Vec<u8> = sums
            .iter()
            .flat_map(|sum| bf16::from_f32(*sum).to_le_bytes())
            .collect();
        assert_eq!(rounded(&sums, Dtype::Bfloat16), want);
    }

    #[test]
    fn the_largest_tells_infinity_and_not_a_number() {
        for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
            let of = |values: &[f32]| largest(&rounded(values, dtype), dtype);
            assert_eq!(of(&[1.0, -3.5, 2.0]), 3.5);
            assert!(of(&[1.0, f32::NEG_INFINITY]).is_infinite());
        }
        let nan = f32::NAN.to_le_bytes();
        assert!(largest(&nan, Dtype::Float32).is_nan());
        assert!(largest(&bf16::NAN.to_le_bytes(), Dtype::Bfloat16).is_nan());
        assert!(largest(&f16::NAN.to_le_bytes(), Dtype::Float16).is_nan());
    }

    #[test]
    fn adds_rows_of_every_type() {
        for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
            let mut sums = [1.0f32; 19];
            let values: Vec<f32> = (0..19).map(|i| i as f32 * 0.5).collect();
            add_row(&mut sums, &rounded(&values, dtype), dtype);
            assert!(sums
                .iter()
                .zip(&values)
                .all(|(sum, value)| *sum == 1.0 + value));
        }
    }
}
