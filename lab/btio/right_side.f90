!> The right-hand side of a step: the operator of the equations, and the forcing that makes the
!> exact solution its steady state.
!>
!> Differences are central and of second order; a fourth difference damps what they cannot see.
module right_side
  use equations, only: dp, unknowns, ghosts, c1, c2, c3c4, c1c5, third, dissipation_2, &
      dissipation_4, viscosity
  use decomposition, only: partition_type, across
  use lines, only: get_line, put_line
  use faces, only: exchange
  use start, only: put_exact
  implicit none
  private

  public :: put_forcing, put_right_side

contains

  !> `forcing` is the operator of the exact solution.
  subroutine put_forcing(part, forcing)
    type(partition_type), intent(in) :: part
    real(dp), allocatable, intent(inout) :: forcing(:, :, :, :, :)
    real(dp), allocatable :: u(:, :, :, :, :)

    call part%new_field(u)
    call put_exact(part, u)
    call exchange(part, u)
    call put_operator(part, u, forcing)
  end subroutine put_forcing

  !> `right` becomes dt (Op(u) - forcing) inside the grid and 0 on its faces. The layers around the
  !> cells of `u` are brought up to date for it.
  subroutine put_right_side(part, dt, forcing, u, right)
    type(partition_type), intent(in) :: part
    real(dp), intent(in) :: dt
    real(dp), allocatable, intent(in) :: forcing(:, :, :, :, :)
    real(dp), allocatable, intent(inout) :: u(:, :, :, :, :), right(:, :, :, :, :)

    call exchange(part, u)
    call put_operator(part, u, right)
    right = dt * (right - forcing)
  end subroutine put_right_side

  subroutine put_operator(part, u, result)
    type(partition_type), intent(in) :: part
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :)
    real(dp), allocatable, intent(inout) :: result(:, :, :, :, :)
    real(dp), allocatable :: line(:, :), sum(:, :), fourth(:, :)
    integer :: c, e, a, b, inside(2), range_a(2), range_b(2), others(2)

    result = 0.0_dp
    do c = 1, part%p
      do e = 1, 3
        others = across(e)
        inside = part%interior(c, e)
        range_a = part%interior(c, others(1))
        range_b = part%interior(c, others(2))
        fourth = fourth_difference(part, c, e)
        allocate (line(inside(1) - ghosts:inside(2) + ghosts, unknowns))
        allocate (sum(inside(1):inside(2), unknowns))
        do b = range_b(1), range_b(2)
          do a = range_a(1), range_a(2)
            call get_line(u(:, :, :, :, c), e, a, b, inside(1) - ghosts, line)
            call get_line(result(:, :, :, :, c), e, a, b, inside(1), sum)
            call add_along(e, part%h, inside, fourth, line, sum)
            call put_line(result(:, :, :, :, c), e, a, b, inside(1), sum)
          end do
        end do
        deallocate (line, sum)
      end do
    end do
  end subroutine put_operator

  !> Weights of the fourth difference at each inner point of a cell, for the points from two before
  !> to two behind it. It is one-sided beside a face of the grid.
  pure function fourth_difference(part, c, e) result(weights)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: c, e
    real(dp), allocatable :: weights(:, :)
    integer :: i, g, inside(2)

    inside = part%interior(c, e)
    allocate (weights(inside(1):inside(2), -ghosts:ghosts))
    do i = inside(1), inside(2)
      g = part%cells(c)%start(e) + i
      weights(i, :) = [1, -4, 6, -4, 1]
      if (g == 1) weights(i, :) = [0, 0, 5, -4, 1]
      if (g == 2) weights(i, :) = [0, -4, 6, -4, 1]
      if (g == part%n - 3) weights(i, :) = [1, -4, 6, -4, 0]
      if (g == part%n - 2) weights(i, :) = [1, -4, 5, 0, 0]
    end do
    weights = dissipation_4 * weights
  end function fourth_difference

  !> Adds what direction `e` contributes along a line to `sum`.
  pure subroutine add_along(e, h, inside, fourth, line, sum)
    integer, intent(in) :: e, inside(2)
    real(dp), intent(in) :: h, fourth(inside(1):, -ghosts:)
    real(dp), intent(in) :: line(inside(1) - ghosts:, :)
    real(dp), intent(inout) :: sum(inside(1):, :)
    real(dp), dimension(inside(1) - 1:inside(2) + 1, unknowns) :: flux, diffused
    integer :: i, m

    call flux_and_diffused(e, line(inside(1) - 1:inside(2) + 1, :), flux, diffused)
    do m = 1, unknowns
      do i = inside(1), inside(2)
        sum(i, m) = sum(i, m) &
            + (diffused(i + 1, m) - 2.0_dp * diffused(i, m) + diffused(i - 1, m)) / h**2 &
            - (flux(i + 1, m) - flux(i - 1, m)) / (2.0_dp * h) &
            - (fourth(i, -2) * line(i - 2, m) + fourth(i, -1) * line(i - 1, m) &
            + fourth(i, 0) * line(i, m) + fourth(i, 1) * line(i + 1, m) &
            + fourth(i, 2) * line(i + 2, m))
      end do
    end do
  end subroutine add_along

  !> At each point, what is carried along `e` and what diffuses along it.
  pure subroutine flux_and_diffused(e, line, flux, diffused)
    integer, intent(in) :: e
    real(dp), intent(in) :: line(:, :)
    real(dp), dimension(:, :), intent(out) :: flux, diffused
    real(dp), dimension(size(line, 1)) :: inverse, kinetic, velocity
    integer :: m

    inverse = 1.0_dp / line(:, 1)
    kinetic = 0.5_dp * (line(:, 2)**2 + line(:, 3)**2 + line(:, 4)**2) * inverse
    velocity = line(:, 1 + e) * inverse
    flux(:, 1) = line(:, 1 + e)
    diffused(:, 1) = 0.0_dp
    do m = 2, 4
      flux(:, m) = line(:, m) * velocity
      diffused(:, m) = viscosity(m - 1, e) * line(:, m) * inverse
    end do
    flux(:, 1 + e) = flux(:, 1 + e) + c2 * (line(:, 5) - kinetic)
    flux(:, 5) = (c1 * line(:, 5) - c2 * kinetic) * velocity
    diffused(:, 5) = c3c4 * ((1.0_dp - c1c5) * kinetic * inverse &
        + 0.5_dp * third * velocity**2 + c1c5 * line(:, 5) * inverse)
    diffused = diffused + dissipation_2(e) * line
  end subroutine flux_and_diffused

end module right_side
