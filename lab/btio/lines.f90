!> Lines of a cell: the points along one direction at a place across it, as an array of their own.
!>
!> All that BT computes is computed along lines, so nothing else knows how a direction is stored.
module lines
  use equations, only: dp, unknowns, ghosts
  implicit none
  private

  public :: get_line, put_line

contains

  !> The line along direction `e` through (a, b) in the other two, from point `first` on.
  pure subroutine get_line(field, e, a, b, first, line)
    real(dp), intent(in) :: field(:, -ghosts:, -ghosts:, -ghosts:)
    integer, intent(in) :: e, a, b, first
    real(dp), intent(out) :: line(first:, :)
    integer :: i

    select case (e)
    case (1)
      do i = first, ubound(line, 1)
        line(i, :) = field(:, i, a, b)
      end do
    case (2)
      do i = first, ubound(line, 1)
        line(i, :) = field(:, a, i, b)
      end do
    case default
      do i = first, ubound(line, 1)
        line(i, :) = field(:, a, b, i)
      end do
    end select
  end subroutine get_line

  !> Puts a line where `get_line` would get it.
  pure subroutine put_line(field, e, a, b, first, line)
    real(dp), intent(inout) :: field(:, -ghosts:, -ghosts:, -ghosts:)
    integer, intent(in) :: e, a, b, first
    real(dp), intent(in) :: line(first:, :)
    integer :: i

    select case (e)
    case (1)
      do i = first, ubound(line, 1)
        field(:, i, a, b) = line(i, 1:unknowns)
      end do
    case (2)
      do i = first, ubound(line, 1)
        field(:, a, i, b) = line(i, 1:unknowns)
      end do
    case default
      do i = first, ubound(line, 1)
        field(:, a, b, i) = line(i, 1:unknowns)
      end do
    end select
  end subroutine put_line

end module lines
