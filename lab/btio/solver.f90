!> BT itself: the state of a run, and a step of it.
module solver
  use equations, only: dp, unknowns
  use classes, only: class_type
  use decomposition, only: partition_type
  use right_side, only: put_forcing, put_right_side
  use start, only: put_start
  use sweeps, only: solve_along, eliminated_type
  use norms, only: residual_norm
  implicit none
  private

  type, public :: solver_type
    real(dp), allocatable :: u(:, :, :, :, :)
    real(dp), allocatable, private :: right(:, :, :, :, :), forcing(:, :, :, :, :)
    type(eliminated_type), private :: work
    real(dp), private :: dt = 0
  contains
    procedure :: make
    procedure :: restart
    procedure :: step
    procedure :: residual
  end type solver_type

contains

  subroutine make(this, class, part)
    class(solver_type), intent(inout) :: this
    type(class_type), intent(in) :: class
    type(partition_type), intent(in) :: part

    this%dt = class%dt
    call part%new_field(this%u)
    call part%new_field(this%right)
    call part%new_field(this%forcing)
    call this%work%make(part)
    call put_forcing(part, this%forcing)
    call this%restart(part)
  end subroutine make

  subroutine restart(this, part)
    class(solver_type), intent(inout) :: this
    type(partition_type), intent(in) :: part

    call put_start(part, this%u)
  end subroutine restart

  !> The implicit operator is factored: one direction is solved after the other.
  subroutine step(this, part)
    class(solver_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    integer :: e

    call put_right_side(part, this%dt, this%forcing, this%u, this%right)
    do e = 1, 3
      call solve_along(part, e, this%dt, this%u, this%right, this%work)
    end do
    this%u = this%u + this%right
  end subroutine step

  !> How far from a steady state it is.
  function residual(this, part) result(norm)
    class(solver_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    real(dp) :: norm(unknowns)

    call put_right_side(part, this%dt, this%forcing, this%u, this%right)
    norm = residual_norm(part, this%dt, this%right)
  end function residual

end module solver
