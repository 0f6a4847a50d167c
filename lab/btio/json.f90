!> A JSON object, written name by name.
module json
  use equations, only: dp
  implicit none
  private

  type, public :: json_type
    private
    integer :: unit = 0
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

  subroutine begin(this, unit)
    class(json_type), intent(inout) :: this
    integer, intent(in) :: unit

    this%unit = unit
    write (this%unit, '(a)', advance='no') '{'
  end subroutine begin

  subroutine finish(this)
    class(json_type), intent(inout) :: this

    write (this%unit, '(a)') '}'
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
