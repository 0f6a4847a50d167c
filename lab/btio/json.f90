!> A JSON object, written name by name.
module json
  use, intrinsic :: iso_fortran_env, only: output_unit
  use equations, only: dp
  use failure, only: fail
  implicit none
  private

  type, public :: json_type
    private
    integer :: unit = output_unit
    logical :: is_first = .true.
  contains
    procedure :: begin
    procedure :: finish
    procedure :: text
    procedure :: number
    procedure :: numbers
    procedure :: whole
    procedure :: truth
    procedure :: nothing
    procedure :: object
    procedure :: end_object
    procedure, private :: name
  end type json_type

contains

  !> It goes to a file that is replaced, or to the standard output where none is named.
  subroutine begin(this, path)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: path
    integer :: code

    if (path /= '') then
      open (newunit=this%unit, file=path, status='replace', action='write', recl=65536, iostat=code)
      if (code /= 0) call fail(path // ': the report cannot be written')
    end if
    write (this%unit, '(a)', advance='no') '{'
  end subroutine begin

  subroutine finish(this)
    class(json_type), intent(inout) :: this

    write (this%unit, '(a)') '}'
    if (this%unit /= output_unit) close (this%unit)
  end subroutine finish

  subroutine object(this, key)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: key

    call this%name(key)
    write (this%unit, '(a)', advance='no') '{'
    this%is_first = .true.
  end subroutine object

  subroutine end_object(this)
    class(json_type), intent(inout) :: this

    write (this%unit, '(a)', advance='no') '}'
    this%is_first = .false.
  end subroutine end_object

  subroutine text(this, key, value)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: key, value

    call this%name(key)
    write (this%unit, '(3a)', advance='no') '"', escaped(value), '"'
  end subroutine text

  subroutine number(this, key, value)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: key
    real(dp), intent(in) :: value

    call this%name(key)
    write (this%unit, '(a)', advance='no') shown_number(value)
  end subroutine number

  subroutine numbers(this, key, values)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: key
    real(dp), intent(in) :: values(:)
    integer :: i

    call this%name(key)
    write (this%unit, '(a)', advance='no') '['
    do i = 1, size(values)
      if (i > 1) write (this%unit, '(a)', advance='no') ', '
      write (this%unit, '(a)', advance='no') shown_number(values(i))
    end do
    write (this%unit, '(a)', advance='no') ']'
  end subroutine numbers

  subroutine whole(this, key, value)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: key
    integer, intent(in) :: value

    call this%name(key)
    write (this%unit, '(i0)', advance='no') value
  end subroutine whole

  subroutine truth(this, key, value)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: key
    logical, intent(in) :: value

    call this%name(key)
    write (this%unit, '(a)', advance='no') trim(merge('true ', 'false', value))
  end subroutine truth

  subroutine nothing(this, key)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: key

    call this%name(key)
    write (this%unit, '(a)', advance='no') 'null'
  end subroutine nothing

  subroutine name(this, key)
    class(json_type), intent(inout) :: this
    character(*), intent(in) :: key

    if (.not. this%is_first) write (this%unit, '(a)', advance='no') ', '
    write (this%unit, '(3a)', advance='no') '"', escaped(key), '": '
    this%is_first = .false.
  end subroutine name

  !> JSON has no word for what is not a finite number.
  pure function shown_number(value) result(shown)
    real(dp), intent(in) :: value
    character(:), allocatable :: shown
    character(32) :: buffer

    if (.not. abs(value) <= huge(value)) then
      shown = 'null'
      return
    end if
    write (buffer, '(es24.16e3)') value
    shown = trim(adjustl(buffer))
  end function shown_number

  !> Quotes and backslashes are marked; control characters, which nothing here has, become blanks.
  pure function escaped(value) result(shown)
    character(*), intent(in) :: value
    character(:), allocatable :: shown
    integer :: i

    shown = ''
    do i = 1, len(value)
      if (value(i:i) == '"' .or. value(i:i) == '\') shown = shown // '\'
      shown = shown // merge(value(i:i), ' ', iachar(value(i:i)) >= 32)
    end do
  end function escaped

end module json
