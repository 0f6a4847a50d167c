!> What the unknowns are before the first step, and the exact solution as a field.
module start
  use equations, only: dp, unknowns, exact
  use decomposition, only: partition_type
  implicit none
  private

  public :: put_start, put_exact

contains

  !> Exact on the faces of the grid, blended from them inside.
  subroutine put_start(part, u)
    type(partition_type), intent(in) :: part
    real(dp), allocatable, intent(inout) :: u(:, :, :, :, :)
    integer :: c, x, y, z, grid(3)
    real(dp) :: at(3)

    do c = 1, part%p
      do z = 0, part%cells(c)%edge(3) - 1
        do y = 0, part%cells(c)%edge(2) - 1
          do x = 0, part%cells(c)%edge(1) - 1
            at = part%place(c, x, y, z)
            grid = part%cells(c)%start + [x, y, z]
            if (any(grid == 0 .or. grid == part%n - 1)) then
              u(:, x, y, z, c) = exact(at)
            else
              u(:, x, y, z, c) = blended(at)
            end if
          end do
        end do
      end do
    end do
  end subroutine put_start

  pure function blended(at) result(u)
    real(dp), intent(in) :: at(3)
    real(dp) :: u(unknowns), between(unknowns, 3), low(3), high(3)
    integer :: e

    do e = 1, 3
      low = at
      high = at
      low(e) = 0.0_dp
      high(e) = 1.0_dp
      between(:, e) = at(e) * exact(high) + (1.0_dp - at(e)) * exact(low)
    end do
    u = between(:, 1) + between(:, 2) + between(:, 3) - between(:, 1) * between(:, 2) &
        - between(:, 1) * between(:, 3) - between(:, 2) * between(:, 3) &
        + between(:, 1) * between(:, 2) * between(:, 3)
  end function blended

  !> The exact solution at every point of the grid that the rank has.
  subroutine put_exact(part, u)
    type(partition_type), intent(in) :: part
    real(dp), allocatable, intent(inout) :: u(:, :, :, :, :)
    integer :: c, x, y, z

    do c = 1, part%p
      do z = 0, part%cells(c)%edge(3) - 1
        do y = 0, part%cells(c)%edge(2) - 1
          do x = 0, part%cells(c)%edge(1) - 1
            u(:, x, y, z, c) = exact(part%place(c, x, y, z))
          end do
        end do
      end do
    end do
  end subroutine put_exact

end module start
