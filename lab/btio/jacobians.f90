!> The blocks of a line's equations: 5 x 5 Jacobians of what is carried and of what diffuses.
module jacobians
  use equations, only: dp, unknowns, c1, c2, c1345, dissipation_2, viscosity
  implicit none
  private

  type, public :: blocks_type
    !> What a point puts into the rows of the point behind it, of its own, and of the one before it.
    real(dp), dimension(unknowns, unknowns) :: below, own, above
  end type blocks_type

  public :: blocks

contains

  !> Of a point with unknowns `u`, for direction `e`. Rows and columns are exchanged: (column, row).
  pure function blocks(e, dt, h, u) result(made)
    integer, intent(in) :: e
    real(dp), intent(in) :: dt, h, u(unknowns)
    type(blocks_type) :: made
    real(dp), dimension(unknowns, unknowns) :: carried, diffused
    integer :: m

    carried = dt / (2.0_dp * h) * flux_jacobian(e, u)
    diffused = diffusion_jacobian(e, u)
    do m = 1, unknowns
      diffused(m, m) = diffused(m, m) + dissipation_2(e)
    end do
    diffused = dt / h**2 * diffused
    made%below = -carried - diffused
    made%above = carried - diffused
    made%own = 2.0_dp * diffused
    do m = 1, unknowns
      made%own(m, m) = made%own(m, m) + 1.0_dp
    end do
  end function blocks

  pure function flux_jacobian(e, u) result(f)
    integer, intent(in) :: e
    real(dp), intent(in) :: u(unknowns)
    real(dp) :: f(unknowns, unknowns), v(3), half_square, velocity
    integer :: i

    v = u(2:4) / u(1)
    half_square = 0.5_dp * sum(v**2)
    velocity = v(e)
    f = 0.0_dp
    f(1 + e, 1) = 1.0_dp
    do i = 1, 3
      f(1, 1 + i) = -v(i) * velocity
      f(1 + i, 1 + i) = velocity
      f(1 + e, 1 + i) = f(1 + e, 1 + i) + v(i)
    end do
    f(1, 1 + e) = f(1, 1 + e) + c2 * half_square
    f(2:4, 1 + e) = f(2:4, 1 + e) - c2 * v
    f(5, 1 + e) = c2
    f(1, 5) = (2.0_dp * c2 * half_square - c1 * u(5) / u(1)) * velocity
    f(2:4, 5) = -c2 * v * velocity
    f(1 + e, 5) = f(1 + e, 5) + c1 * u(5) / u(1) - c2 * half_square
    f(5, 5) = c1 * velocity
  end function flux_jacobian

  pure function diffusion_jacobian(e, u) result(d)
    integer, intent(in) :: e
    real(dp), intent(in) :: u(unknowns)
    real(dp) :: d(unknowns, unknowns), v, inverse, mu
    integer :: i

    inverse = 1.0_dp / u(1)
    d = 0.0_dp
    d(1, 5) = -c1345 * u(5) * inverse**2
    do i = 1, 3
      v = u(1 + i) * inverse
      mu = viscosity(i, e)
      d(1, 1 + i) = -mu * v * inverse
      d(1 + i, 1 + i) = mu * inverse
      d(1, 5) = d(1, 5) - (mu - c1345) * v**2 * inverse
      d(1 + i, 5) = (mu - c1345) * v * inverse
    end do
    d(5, 5) = c1345 * inverse
  end function diffusion_jacobian

end module jacobians
