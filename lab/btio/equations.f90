!> The equations of BT: its kinds, the coefficients of its five unknowns, and its exact solution.
!>
!> Unknowns at a point are density, three momenta and energy. What is here comes from the published
!> specification of the NAS Parallel Benchmarks (Bailey et al., RNR-94-007, chapter 3); none of
!> NPB's code was used.
module equations
  use, intrinsic :: iso_fortran_env, only: real64
  implicit none
  private

  integer, parameter, public :: dp = real64
  integer, parameter, public :: unknowns = 5
  integer, parameter, public :: ghosts = 2
  !< Layers of points around a cell: as far as the fourth difference reaches.

  real(dp), parameter, public :: c1 = 1.4_dp, c2 = 0.4_dp, c3c4 = 0.1_dp, c1c5 = 1.96_dp
  real(dp), parameter, public :: c1345 = c1c5 * c3c4
  real(dp), parameter, public :: third = 1.0_dp / 3.0_dp
  real(dp), parameter, public :: dissipation_2(3) = [0.75_dp, 0.75_dp, 1.0_dp]
  !< Of the second difference, by direction.
  real(dp), parameter, public :: dissipation_4 = 0.25_dp

  real(dp), parameter :: terms(unknowns, 13) = reshape([ &
      2.0_dp, 0.0_dp, 0.0_dp, 4.0_dp, 5.0_dp, 3.0_dp, 0.5_dp, 0.02_dp, 0.01_dp, 0.03_dp, &
      0.5_dp, 0.4_dp, 0.3_dp, &
      1.0_dp, 0.0_dp, 0.0_dp, 0.0_dp, 1.0_dp, 2.0_dp, 3.0_dp, 0.01_dp, 0.03_dp, 0.02_dp, &
      0.4_dp, 0.3_dp, 0.5_dp, &
      2.0_dp, 2.0_dp, 0.0_dp, 0.0_dp, 0.0_dp, 2.0_dp, 3.0_dp, 0.04_dp, 0.03_dp, 0.05_dp, &
      0.3_dp, 0.5_dp, 0.4_dp, &
      2.0_dp, 2.0_dp, 0.0_dp, 0.0_dp, 0.0_dp, 2.0_dp, 3.0_dp, 0.03_dp, 0.05_dp, 0.04_dp, &
      0.2_dp, 0.1_dp, 0.3_dp, &
      5.0_dp, 4.0_dp, 3.0_dp, 2.0_dp, 0.1_dp, 0.4_dp, 0.3_dp, 0.05_dp, 0.04_dp, 0.03_dp, &
      0.1_dp, 0.3_dp, 0.2_dp], [unknowns, 13], order=[2, 1])

  public :: exact, viscosity

contains

  !> The exact solution at a point of the unit cube.
  pure function exact(at) result(u)
    real(dp), intent(in) :: at(3)
    real(dp) :: u(unknowns)
    integer :: e

    u = terms(:, 1)
    do e = 1, 3
      u = u + at(e) * (terms(:, 1 + e) + at(e) * (terms(:, 4 + e) &
          + at(e) * (terms(:, 7 + e) + at(e) * terms(:, 10 + e))))
    end do
  end function exact

  !> How much momentum `i` is diffused along direction `e`.
  pure real(dp) function viscosity(i, e)
    integer, intent(in) :: i, e

    viscosity = merge(4.0_dp * third * c3c4, c3c4, i == e)
  end function viscosity

end module equations
