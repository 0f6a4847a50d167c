!> Dumps by Fortran's own input and output: `fortran` writes one record a point of the grid by
!> direct access to a shared file; `epio` writes one record a cell to a file of the rank's own.
module dumps_fortran
  use, intrinsic :: iso_fortran_env, only: int64
  use equations, only: dp, unknowns
  use decomposition, only: partition_type
  use failure, only: fail
  implicit none
  private

  integer, parameter :: message_length = 200

  type, public :: fortran_dumps_type
    private
    integer :: unit = 0
    logical :: shared = .true.
    character(:), allocatable :: path
  contains
    procedure :: open => open_file
    procedure :: write => write_dump
    procedure :: read => read_dump
    procedure :: close => close_file
  end type fortran_dumps_type

  public :: own_path

contains

  !> The file of one rank.
  pure function own_path(path, rank) result(name)
    character(*), intent(in) :: path
    integer, intent(in) :: rank
    character(:), allocatable :: name
    character(12) :: number

    write (number, '(i4.4)') rank
    name = path // '.' // trim(number)
  end function own_path

  !> The file exists.
  subroutine open_file(this, path, writing, shared)
    class(fortran_dumps_type), intent(inout) :: this
    character(*), intent(in) :: path
    logical, intent(in) :: writing, shared
    character(message_length) :: message
    character(5) :: action
    integer :: code, record
    real(dp) :: point(unknowns)

    this%shared = shared
    this%path = path
    action = merge('write', 'read ', writing)
    if (shared) then
      inquire (iolength=record) point
      open (newunit=this%unit, file=path, access='direct', form='unformatted', recl=record, &
          action=action, status='old', iostat=code, iomsg=message)
    else
      open (newunit=this%unit, file=path, access='sequential', form='unformatted', action=action, &
          status='old', iostat=code, iomsg=message)
    end if
    call check(this, code, message)
  end subroutine open_file

  subroutine write_dump(this, part, number, u)
    class(fortran_dumps_type), intent(in) :: this
    type(partition_type), intent(in) :: part
    integer, intent(in) :: number
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :)
    character(message_length) :: message
    integer :: c, x, y, z, last(3), code
    integer(int64) :: record

    do c = 1, part%p
      last = part%cells(c)%edge - 1
      if (.not. this%shared) then
        write (this%unit, iostat=code, iomsg=message) u(:, 0:last(1), 0:last(2), 0:last(3), c)
        call check(this, code, message)
        cycle
      end if
      do z = 0, last(3)
        do y = 0, last(2)
          record = part%index_of(number, c, 0, y, z)
          do x = 0, last(1)
            write (this%unit, rec=record + x + 1, iostat=code, iomsg=message) u(:, x, y, z, c)
            call check(this, code, message)
          end do
        end do
      end do
    end do
  end subroutine write_dump

  subroutine read_dump(this, part, number, u)
    class(fortran_dumps_type), intent(in) :: this
    type(partition_type), intent(in) :: part
    integer, intent(in) :: number
    real(dp), allocatable, intent(inout) :: u(:, :, :, :, :)
    character(message_length) :: message
    integer :: c, x, y, z, last(3), code
    integer(int64) :: record

    do c = 1, part%p
      last = part%cells(c)%edge - 1
      if (.not. this%shared) then
        read (this%unit, iostat=code, iomsg=message) u(:, 0:last(1), 0:last(2), 0:last(3), c)
        call check(this, code, message)
        cycle
      end if
      do z = 0, last(3)
        do y = 0, last(2)
          record = part%index_of(number, c, 0, y, z)
          do x = 0, last(1)
            read (this%unit, rec=record + x + 1, iostat=code, iomsg=message) u(:, x, y, z, c)
            call check(this, code, message)
          end do
        end do
      end do
    end do
  end subroutine read_dump

  subroutine close_file(this)
    class(fortran_dumps_type), intent(inout) :: this
    character(message_length) :: message
    integer :: code

    close (this%unit, iostat=code, iomsg=message)
    call check(this, code, message)
  end subroutine close_file

  subroutine check(this, code, message)
    class(fortran_dumps_type), intent(in) :: this
    integer, intent(in) :: code
    character(*), intent(in) :: message

    if (code /= 0) call fail(this%path // ': ' // trim(message))
  end subroutine check

end module dumps_fortran
